"""All parameters of a module as one tensor, so that an optimizer updates one tensor instead of many."""

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from fastmarl.core.errors import ConfigError

AGAIN = "call flat_parameters() again and create an optimizer with its result, or create another PPOLearner"


class FlatPart(NamedTuple):
    """A parameter that is a view of part of a flat tensor."""

    parameter: torch.nn.Parameter
    gradient: Tensor
    address: int
    places: dict[str, torch.nn.Parameter | None]  # `_parameters` of its module
    name: str  # key in `places`


class FlatParameters(torch.nn.Parameter):
    """The tensor that `flat_parameters()` returns.

    `grad` is never None: the parameters' gradients are views of it, and setting it to None fills it with zeros.
    """

    _parts: list[FlatPart]
    _gradient: Tensor

    @property
    def grad(self) -> Tensor:  # type: ignore[override]
        """Gradients, [k]. Gradients that were detached from their parameters, as by `module.zero_grad()`, are restored.

        Raises:
            ConfigError: If a parameter was moved, or no longer belongs to the module, so that steps would not reach it;
                or it was frozen, so that steps would still change it.
        """
        for parameter, part, address, places, name in self._parts:
            if parameter.data_ptr() != address:
                raise ConfigError(f"the parameter {name!r} was moved out of its module's flat parameters, as by "
                                  f"module.to(); {AGAIN}")  # fmt: skip
            if name not in places or places[name] is not parameter:
                raise ConfigError(f"the parameter {name!r} of the flat parameters no longer belongs to its module, as "
                                  f"after load_state_dict(assign=True); {AGAIN}")  # fmt: skip
            if not parameter.requires_grad:
                raise ConfigError(f"the parameter {name!r} was frozen, but as a part of flat parameters it would still "
                                  f"be moved by momentum; {AGAIN}")  # fmt: skip
            if parameter.grad is not part:
                if parameter.grad is None:
                    part.zero_()
                else:
                    part.copy_(parameter.grad.detach())
                parameter.grad = part
        return self._gradient

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        gradient = self.grad
        if value is None:
            gradient.zero_()
        else:
            gradient.copy_(value.detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError("flat parameters belong to a module; copy that, and call flat_parameters() with the copy")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("flat parameters belong to a module; save that, and call flat_parameters() after loading it")


def flat_parameters(module: torch.nn.Module) -> FlatParameters:
    """Move a module's parameters into one tensor, and make them views of it; their values stay.

    An optimizer that has only this tensor steps in a fraction of the time, with the same results if it treats every
    number separately, as SGD, RMSprop and Adam do:

    ```python
    optimizer = torch.optim.Adam([flat_parameters(module)], lr=1e-3, fused=True)
    ```

    The module is used, saved and loaded as before (except by `load_state_dict(assign=True)`, which replaces its
    parameters). A runner that acts with it sees each step immediately. Call this function after `module.to(...)`, which
    moves parameters out of the tensor again, after replacing layers, and after freezing or unfreezing parameters. To
    save a module, use `torch.save()`: plain `pickle` writes the whole tensor for each of its parameters.

    Args:
        module: Module whose parameters with `requires_grad` are moved; others stay in place.

    Returns:
        Tensor [k], the numbers of all parameters in the order of `module.parameters()`.

    Raises:
        ConfigError: If there are no such parameters, or they have several dtypes or devices.
    """
    places = {
        parameter: (part._parameters, name)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None
    }
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
            flat._parts.append(FlatPart(parameter, part, parameter.data_ptr(), *places[parameter]))
            begin = end
    return flat
