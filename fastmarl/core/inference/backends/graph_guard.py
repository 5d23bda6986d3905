"""Which modules may be captured in CUDA graphs, and whether they are still what was captured."""

from typing import Any

import torch

from fastmarl.core.inference.backends.dense_layers import is_watched, memory_of
from fastmarl.core.inference.backends.graphs import Member, TickGraphs
from fastmarl.core.inference.backends.lean import METHODS
from fastmarl.core.modules.base import RLModule
from fastmarl.core.native._weights import WeightsWatch

KNOWN_LAYERS = ("torch.nn.", "fastmarl.")
SCALARS = (bool, int, float, str, type(None))


class ModuleCapture:
    """Whether one module takes part in launches, as a `member`; it is captured again when it has changed.

    Args:
        graphs: launches modules; None: none is.
        never: what rules it out whatever the module is like; "" if nothing does.

    Attributes:
        in_use: whether it takes part.
        reason: why not, if there are graphs.
    """

    def __init__(self, module: RLModule, graphs: TickGraphs | None, never: str):
        self._module = module
        self._graphs = graphs
        self._never = never
        self._refused = ""
        self._outline: tuple = ()
        self._held: list[Any] = []
        self._watch: WeightsWatch | None = None
        self.in_use = False
        self.reason = ""

    def backend(self, member: Member) -> str:
        """For how many batch sizes there are graphs."""
        n = 0 if self._graphs is None else self._graphs.n_sizes(member)
        return f"cuda graph, {n} batch size{'' if n == 1 else 's'}"

    def renew(self, member: Member) -> None:
        """Look at the module again: its methods and layers, and where its weights are. Changes in place are
        seen without it; layers and the memory of weights are also seen by `is_current()`."""
        if self._graphs is None:
            return
        self._watch = WeightsWatch(self._module.modules())  # before the outline: another thread may move weights
        found = outline(self._module)
        if found != self._outline:
            self._graphs.forget(member)
            self._outline, self._refused = found, ""
            # Who holds these keeps the memory that a capture reads from being used for something else.
            self._held = [tensor.untyped_storage() for tensor in (*self._module.parameters(), *self._module.buffers())]
        self.reason = self._never or self._refused or why_not_capturable(self._module)
        self.in_use = not self.reason

    def is_current(self, member: Member) -> bool:
        """Whether it takes part, as the module is now. Ask before each launch."""
        if self.in_use and (self._watch is None or not self._watch.holds()):
            self.renew(member)
        return self.in_use

    def refuse(self, member: Member, reason: str) -> None:
        """Leave it out until the module has changed."""
        self.reason = self._refused = f"it can't be captured: {reason}"
        self.in_use = False
        self.forget(member)

    def forget(self, member: Member) -> None:
        """Free what was captured."""
        if self._graphs is not None:
            self._graphs.forget(member)


def why_not_capturable(module: RLModule) -> str:
    """What is in the way of a capture, which goes on to do what the forward methods did once; "" if nothing is."""
    kind, own = type(module), vars(module)
    lineage = kind.__mro__
    says_so: Any = next(base for base in lineage if "capturable" in vars(base))
    if not says_so.capturable:
        return f"{kind.__name__} does not say that it is capturable"
    for name in METHODS:
        if name in own:
            return f"{kind.__name__} has a {name}() of its own"
        definer = next(base for base in lineage if name in vars(base))
        if lineage.index(definer) < lineage.index(says_so):
            return f"{definer.__name__} has a {name}() of its own, and does not say that it is capturable"
    for part in module.modules():
        if is_watched(part):
            return f"{type(part).__name__} has hooks, or is compiled"
        if part is not module and says_so is not kind and not type(part).__module__.startswith(KNOWN_LAYERS):
            return (
                f"its layer {type(part).__name__} is not known, and {kind.__name__} does not say that it is capturable"
            )
    return ""


def outline(module: torch.nn.Module) -> tuple:
    """Equal as long as nothing has changed but numbers in weights and buffers, where they were."""
    parts: list[Any] = []
    for part in module.modules():
        attributes = vars(part)
        parts.append(part)  # kept alive, so that no other layer gets its address
        parts += [value for name, value in attributes.items() if name != "training" and _says_how(value)]
        parts += map(memory_of, attributes["_parameters"].values())
        parts += map(memory_of, attributes["_buffers"].values())
    return tuple(parts)


def _says_how(value: Any) -> bool:
    """Whether an attribute may say how a layer computes, such as a slope or a kernel's size."""
    return type(value) in SCALARS or (type(value) is tuple and all(type(part) in SCALARS for part in value))
