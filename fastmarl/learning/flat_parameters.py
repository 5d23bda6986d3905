"""All parameters of a module as one tensor, so that an optimizer has one to look after instead of many."""

from typing import Any

import torch
from torch import Tensor

from fastmarl.errors import ConfigError


class FlatParameters(torch.nn.Parameter):
    """What `flat_parameters()` returns. `grad` is never None: the parameters' gradients are parts of it, and to set it
    to None fills it with zeros."""

    _parts: list[tuple[torch.nn.Parameter, Tensor, int]]  # each with its gradient and its address
    _gradient: Tensor

    @property
    def grad(self) -> Tensor:  # type: ignore[override]
        """The gradients, [k]. Those that were taken off their parameters, as by `module.zero_grad()`, are put back.

        Raises:
            ConfigError: a parameter lies elsewhere by now, so that steps would not reach it.
        """
        for parameter, part, address in self._parts:
            if parameter.data_ptr() != address:
                raise ConfigError("a parameter was moved out of its module's flat parameters, as by module.to(); call "
                                  "flat_parameters() again, and make an optimizer of what it returns")  # fmt: skip
            if parameter.grad is not part:
                if parameter.grad is None:
                    part.zero_()
                else:
                    part.copy_(parameter.grad)
                parameter.grad = part
        return self._gradient

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        gradient = self.grad
        if value is None:
            gradient.zero_()
        else:
            gradient.copy_(value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError("flat parameters belong to a module; copy that, and call flat_parameters() with the copy")


def flat_parameters(module: torch.nn.Module) -> FlatParameters:
    """Move a module's parameters into one tensor, of which they become parts; their values stay.

    A step of an optimizer that has this tensor alone takes a fraction of the time, and is the same for each optimizer
    that treats every number by itself, such as SGD, RMSprop and Adam:

    ```python
    optimizer = torch.optim.Adam([flat_parameters(module)], lr=1e-3, fused=True)
    ```

    The module is used, saved and loaded as before (but not by `load_state_dict(assign=True)`, which gives it other
    parameters). A runner that acts with it sees each step at once. Call it after `module.to(...)`, which moves
    parameters out of the tensor again.

    Args:
        module: its parameters that need gradients are moved; others stay where they are.

    Returns:
        [k], the numbers of all parameters in order of `module.parameters()`.

    Raises:
        ConfigError: there are no such parameters, or they have several dtypes or devices.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    if len(kinds) != 1:
        found = sorted(f"{dtype} on {device}" for dtype, device in kinds)
        raise ConfigError(f"flat_parameters() needs parameters of one dtype on one device, got {found or 'none'}")
    with torch.no_grad():
        whole = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        flat = FlatParameters(whole)
        flat._gradient = torch.zeros_like(whole)
        flat._parts = []
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            part = flat._gradient[begin:end].view(parameter.shape)
            if parameter.grad is not None:
                part.copy_(parameter.grad)
            parameter.data = whole[begin:end].view(parameter.shape)
            parameter.grad = part
            flat._parts.append((parameter, part, parameter.data_ptr()))
            begin = end
    return flat
