"""Capture of modules in CUDA graphs, and detection of changes that require a new capture."""

from typing import Any

import torch

from fastmarl.core.modules.base import RLModule
from fastmarl.core.native._weights import WeightsWatch
from fastmarl.core.nets.dense_layers import is_watched, memory_of
from fastmarl.core.nets.graphs import Member, TickGraphs
from fastmarl.core.nets.native import METHODS

KNOWN_LAYERS = ("torch.nn.", "fastmarl.")
SCALARS = (bool, int, float, str, type(None))


class ModuleCapture:
    """Decides whether CUDA graphs run a module (the `member`), and drops its captures when it changes.

    Args:
        module: The module.
        graphs: Launches modules; None if graphs are not used.
        never: Reason why the module can never be captured, or "".

    Attributes:
        in_use: True if graphs run the module.
        reason: Reason why they do not, or ""; always "" without graphs.
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
        """Describe the backend, including the number of batch sizes that have graphs."""
        n = 0 if self._graphs is None else self._graphs.n_sizes(member)
        return f"cuda graph, {n} batch size{'' if n == 1 else 's'}"

    def renew(self, member: Member) -> None:
        """Recheck the methods, layers and weight memory of the module.

        Not needed for new weight values in the same memory. `is_current()` also detects changes of layers and memory.
        """
        if self._graphs is None:
            return
        self._watch = WeightsWatch(self._module.modules())  # before reading the outline: other threads may move weights
        found = outline(self._module)
        if found != self._outline:
            self._graphs.forget(member)
            self._outline, self._refused = found, ""
            # Keeping these alive prevents reuse of the memory that captures read.
            self._held = [tensor.untyped_storage() for tensor in (*self._module.parameters(), *self._module.buffers())]
        self.reason = self._never or self._refused or why_not_capturable(self._module)
        self.in_use = not self.reason

    def is_current(self, member: Member) -> bool:
        """Return True if graphs can run the module in its current form; call this before each launch."""
        if self.in_use and (self._watch is None or not self._watch.holds()):
            self.renew(member)
        return self.in_use

    def refuse(self, member: Member, reason: str) -> None:
        """Exclude the module from launches until it changes."""
        self.reason = self._refused = f"it cannot be captured: {reason}"
        self.in_use = False
        self.forget(member)

    def forget(self, member: Member) -> None:
        """Free the captures of the module."""
        if self._graphs is not None:
            self._graphs.forget(member)


def why_not_capturable(module: RLModule) -> str:
    """Return why the forward methods of a module cannot be captured, or "".

    A replay repeats exactly the operations that the methods executed during the capture.
    """
    kind, own = type(module), vars(module)
    lineage = kind.__mro__
    says_so: Any = next(base for base in lineage if "capturable" in vars(base))
    if not says_so.capturable:
        return f"{kind.__name__} does not set capturable=True"
    for name in METHODS:
        if name in own:
            return f"{kind.__name__} overrides {name}()"
        definer = next(base for base in lineage if name in vars(base))
        if lineage.index(definer) < lineage.index(says_so):
            return f"{definer.__name__} overrides {name}() and does not set capturable=True"
    for part in module.modules():
        if is_watched(part):
            return f"{type(part).__name__} has hooks or is compiled"
        if part is not module and says_so is not kind and not type(part).__module__.startswith(KNOWN_LAYERS):
            return f"its layer {type(part).__name__} is unknown, and {kind.__name__} does not set capturable=True"
    return ""


def outline(module: torch.nn.Module) -> tuple:
    """Return a fingerprint of structure, storage and settings, independent of the values in weights and buffers."""
    parts: list[Any] = []
    for part in module.modules():
        attributes = vars(part)
        parts.append(part)  # kept alive so that no other layer can reuse its address
        parts += [value for name, value in attributes.items() if name != "training" and _says_how(value)]
        parts += map(memory_of, attributes["_parameters"].values())
        parts += map(memory_of, attributes["_buffers"].values())
    return tuple(parts)


def _says_how(value: Any) -> bool:
    """Return True if an attribute may affect the computation of a layer, such as a slope or a kernel size."""
    return type(value) in SCALARS or (type(value) is tuple and all(type(part) in SCALARS for part in value))
