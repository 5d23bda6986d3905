"""All parameters of a module as a single tensor, so that an optimizer updates one tensor instead of many."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from fastmarl.core.errors import ConfigError

AGAIN = "call flat_parameters() again and create an optimizer with its result, or create a new PPOLearner"
FOREACH = tuple(f"_foreach_{name}" for name in ("add", "sub", "mul", "div"))
STEPS = ("add_", "addc", "sub_", "mul_", *FOREACH, "_fused_")  # operations used by steps of torch optimizers


class FlatPart:
    """A parameter that is a view into a flat tensor, with a gradient that is a view into a flat gradient.

    Args:
        parameter: The parameter.
        places: `_parameters` dict of the module that owns it.
        name: Key of the parameter in `places`.
        rows: Range of the parameter in the flat tensor.
        gradient: The flat gradient.
    """

    def __init__(self, parameter: torch.nn.Parameter, places: dict[str, Any], name: str, rows: slice, gradient: Tensor):
        self.parameter, self.places, self.name, self.rows = parameter, places, name, rows
        self.gradient = gradient[rows].view(parameter.shape).data  # its version counts only writes of backward()
        self.address = parameter.data_ptr()
        self._cleared = -1  # version of the gradient when it was last cleared

    @property
    def is_reached(self) -> bool:
        """True if the parameter received a gradient since `clear()`, even if all zeros."""
        given = self.parameter.grad
        return given is not None and (given is not self.gradient or self.gradient._version != self._cleared)

    def clear(self) -> None:
        """Mark the parameter as having no gradient. The gradient must already be all zeros."""
        self._cleared = self.gradient._version
        if self.parameter.grad is not self.gradient:
            self.parameter.grad = self.gradient

    def mark_reached(self) -> None:
        """Mark the parameter as having a gradient, after it was written outside of autograd."""
        self._cleared = -1

    def collect(self) -> None:
        """Reattach the flat gradient to the parameter if it was detached, for example by `module.zero_grad()`."""
        given = self.parameter.grad
        if given is None:
            self.gradient.zero_()
            self.clear()
        elif given is not self.gradient:
            self.gradient.copy_(given.detach())
            self.parameter.grad = self.gradient
            self.mark_reached()

    def check(self) -> None:
        """Raise ConfigError unless a step of the flat tensor updates the module parameter."""
        if self.parameter.data_ptr() != self.address:
            raise ConfigError(f"the parameter {self.name!r} was moved out of its module's flat parameters, for example "
                              f"by module.to(); {AGAIN}")  # fmt: skip
        if self.name not in self.places or self.places[self.name] is not self.parameter:
            raise ConfigError(f"the parameter {self.name!r} of the flat parameters no longer belongs to its module, "
                              f"for example after load_state_dict(assign=True); {AGAIN}")  # fmt: skip
        if not self.parameter.requires_grad:
            raise ConfigError(f"the parameter {self.name!r} was frozen, but as part of the flat parameters it would "
                              f"still be changed by momentum; {AGAIN}")  # fmt: skip


class FlatParameters(torch.nn.Parameter):
    """The tensor returned by `flat_parameters()`.

    An operation that writes to it also writes to the module parameters, so a `backward()` through an earlier graph
    raises the usual torch RuntimeError.

    Attributes:
        gradient: Gradients of all parameters, [k], zeros where a parameter has none. Parameter gradients are views of
            it.
    """

    gradient: Tensor
    _parts: list[FlatPart]
    _unreached: list[slice]  # parts that the next step must not change

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Not a `with` statement, which would leave torch functions disabled if a debugger or test raises at its end.
        call = torch._C._disabled_torch_function_impl
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if (not name.endswith("_") or name == "__get__") and "out" not in kwargs:  # a read-only operation
            return call(func, types, args, kwargs)
        arguments = (*args, *kwargs.values())
        given = [each for arg in arguments for each in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        flats = [each for each in given if isinstance(each, FlatParameters)]
        versions = [each._version for each in flats]
        kept = [each.kept(each._unreached) if name.startswith(STEPS) else [] for each in flats]
        result = call(func, types, args, kwargs)
        for each, version, of_each in zip(flats, versions, kept, strict=True):
            if each._version != version or name.startswith("_fused_"):  # fused steps do not count as writes in torch
                each.put_back(of_each)
                torch.autograd.graph.increment_version(each.parameters)
        return result

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that are views of this tensor, in order."""
        return [part.parameter for part in self._parts]

    @property
    def grad(self) -> Tensor | None:  # type: ignore[override]
        """Gradients, [k]; None if no parameter has a gradient. Setting it to None clears all gradients.

        Gradients detached from their parameters, for example by `module.zero_grad()`, are restored. The next optimizer
        step leaves parameters without a gradient unchanged.

        Raises:
            ConfigError: If a parameter was moved or no longer belongs to the module, so that steps would not reach it,
                or was frozen, so that steps would still change it.
        """
        unreached = self.unreached()
        is_clear = len(unreached) == len(self._parts)
        self._unreached = [] if is_clear else unreached  # without any gradient, optimizers do not step
        return None if is_clear else self.gradient

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self.check()
        self._unreached = []
        if value is None:
            self.gradient.zero_()
        else:
            self.gradient.copy_(value.detach())
        for part in self._parts:
            part.clear()
            if value is not None:
                part.mark_reached()

    def check(self) -> None:
        """Raise ConfigError unless an operation on this tensor reaches the module; see `grad`."""
        for part in self._parts:
            part.check()

    def reached(self) -> set[Tensor]:
        """Return the parameters that have a gradient, even if all zeros."""
        return {part.parameter for part in self._parts if part.is_reached}

    def unreached(self) -> list[slice]:
        """Return the positions of the parameters without a gradient, after restoring detached gradients."""
        for part in self._parts:
            part.check()
            part.collect()
        return [part.rows for part in self._parts if not part.is_reached]

    def mark_reached(self, parameters: Collection[Tensor]) -> None:
        """Mark exactly these parameters as having gradients, after these were written outside of autograd."""
        reached = set(parameters)
        for part in self._parts:
            part.mark_reached() if part.parameter in reached else part.clear()

    def kept(self, places: Sequence[slice], *others: Tensor) -> list[tuple[Tensor, slice, Tensor]]:
        """Copy the values at these positions of this tensor and of `others`, each [k], for `put_back()`."""
        return [(each, rows, each.detach()[rows].clone()) for rows in places for each in (self.detach(), *others)]

    @staticmethod
    @torch.no_grad()
    def put_back(kept: Sequence[tuple[Tensor, slice, Tensor]]) -> None:
        """Restore the values copied by `kept()`."""
        for tensor, rows, values in kept:
            tensor[rows] = values

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise TypeError("flat parameters belong to a module; copy the module and call flat_parameters() on the copy")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("flat parameters belong to a module; save the module and call flat_parameters() after loading")


def flat_parameters(module: torch.nn.Module) -> FlatParameters:
    """Move the parameters of a module into a single tensor and make them views of it; values are unchanged.

    An optimizer over this tensor alone takes a fraction of the time per step. The results are the same if the optimizer
    works elementwise, like SGD, RMSprop and Adam, and `backward()` reaches the same parameters before each step:

    ```python
    optimizer = torch.optim.Adam([flat_parameters(module)], lr=1e-3, fused=True)
    ```

    As in torch, a step does not change parameters without a gradient; but if other parameters have one, the optimizer
    moments are updated as for a zero gradient. Use a separate tensor for each part of the module that has a separate
    training schedule.

    The module is used, saved and loaded as before (except by `load_state_dict(assign=True)`, which replaces its
    parameters). A runner that acts with the module sees each step immediately. Call this function after
    `module.to(...)`, which moves parameters out of the tensor again, after replacing layers, and after freezing or
    unfreezing parameters. To save a module, use `torch.save()`: plain `pickle` writes the entire tensor once per
    parameter.

    Args:
        module: Module whose parameters with `requires_grad` are moved; the others stay in place.

    Returns:
        Tensor [k] with the values of all moved parameters, in the order of `module.parameters()`.

    Raises:
        ConfigError: If there are no such parameters, they differ in dtype or device, or two of them share memory.
    """
    places = {
        parameter: (part._parameters, name)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None
    }
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    addresses = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}  # 0 if it is empty
    counts = Counter(filter(None, addresses.values()))
    if shared := [name for name, address in addresses.items() if counts[address] > 1]:
        raise ConfigError(f"flat_parameters() found parameters that share memory, {' and '.join(shared)}; tie them by "
                          f"assigning the same torch.nn.Parameter to each, which then stays tied")  # fmt: skip
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    if len(kinds) != 1:
        found = sorted(f"{dtype} on {device}" for dtype, device in kinds)
        raise ConfigError(f"flat_parameters() needs parameters of one dtype on one device, got {found or 'none'}")
    with torch.inference_mode(False), torch.no_grad():
        whole = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        flat = FlatParameters(whole)
        flat.gradient, flat._parts, flat._unreached = torch.zeros_like(whole), [], []
        begin = 0
        for parameter in parameters:
            rows = slice(begin, begin + parameter.numel())
            given, parameter.grad = parameter.grad, None
            parameter.data = whole[rows].view(parameter.shape)
            part = FlatPart(parameter, *places[parameter], rows, flat.gradient)
            part.clear()
            if given is not None:
                part.gradient.copy_(given)
            flat._parts.append(part)
            begin = rows.stop
    return flat
