"""Native inference: simple dense networks run in compiled code instead of torch.

For small batches, the overhead of torch calls exceeds the arithmetic. A module runs natively only if the results of its
forward methods are known for certain: it is a `DefaultRLModule`, or an instance of a subclass that keeps these methods,
and consists of linear layers, layer normalisations and known activations without hooks. All other modules run in torch.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.default import DefaultRLModule, FreeLogStd, GRUTrunk, LSTMTrunk
from fastmarl.core.modules.encoders import Entries, Flat
from fastmarl.core.native._dense import DenseNet
from fastmarl.core.native._masks import rule_out
from fastmarl.core.native._weights import WeightsWatch
from fastmarl.core.nets.dense_layers import (
    DenseLayers,
    NativeNet,
    Net,
    NotDenseError,
    is_watched,
    layers_in_order,
    parts_of,
    weights_of,
)
from fastmarl.core.nets.row_threads import ALONE, RowThreads
from fastmarl.core.spaces.layout import Leaf, RowLayout
from fastmarl.core.spaces.structs import Path

DTYPES = (np.float32, np.uint8, np.int8)  # dtypes that compiled code reads in place
LEAST_MULTIPLICATIONS = 4_000_000  # per forward pass, from which several threads are used
UNKNOWN = "the observations are not a Box of floats or bytes"


class Inputs(NamedTuple):
    """The observation leaves that a network reads.

    Attributes:
        leaves: Indices of the leaves in the layout.
        sizes: Number of values per row of each leaf.
        joined: True if the leaves are concatenated as floats, False if there is a single leaf.
        scale: Factor for integer observations.
    """

    leaves: tuple[int, ...]
    sizes: tuple[int, ...]
    joined: bool
    scale: float


def take_inputs(layers: list[nn.Module], layout: RowLayout, path: Path) -> tuple[Inputs, list[nn.Module]]:
    """Return the observation leaves at `path` that a network reads, and its layers after any flattening.

    Raises:
        NotDenseError: If the first layer does not read the leaves as default networks do.
    """
    first = layers[0] if layers else None
    if isinstance(first, Entries):
        found = [(_index_at(layout, leaf_path), encoder) for leaf_path, encoder in _encoders(first, path)]
        for index, encoder in found:
            _check_joined(layout.leaves[index], encoder)
        return _inputs(layout, [index for index, _ in found], joined=True), layers[1:]
    index = _index_at(layout, path)
    leaf = layout.leaves[index]
    if leaf.dtype not in DTYPES:
        raise NotDenseError(UNKNOWN)
    if type(first) is Flat and (leaf.dtype != np.float32 or first._scale == 1.0):
        return _inputs(layout, [index], scale=first._scale), layers[1:]
    if not _is_vector(leaf) or type(first) is Flat:
        raise NotDenseError("its first layer does not flatten observations like the default networks")
    return _inputs(layout, [index]), layers


def mask_leaves(layout: RowLayout, key: str | None, n_logits: int) -> list[tuple[int, int]]:
    """Return (index, number of values per row) of each leaf of the action mask at `key`.

    Raises:
        NotDenseError: If torch would see different values, or their number differs from the number of logits.
    """
    if key is None:
        return []
    leaves = [(i, leaf) for i, leaf in enumerate(layout.leaves) if leaf.path[:1] == (key,)]
    masks = [(i, math.prod(leaf.shape)) for i, leaf in leaves]
    for _, leaf in leaves:
        if not _is_known(leaf.dtype):
            raise NotDenseError(f"its action mask has dtype {leaf.dtype}")
    if sum(size for _, size in masks) != n_logits:
        raise NotDenseError(f"the size of its action mask differs from its number of logits, {n_logits}")
    return masks


class InputRows:
    """Concatenates observation leaves to rows in a reusable buffer.

    Args:
        inputs: The leaves to read.
    """

    def __init__(self, inputs: Inputs):
        self.inputs = inputs
        self._memory = np.empty((0, sum(inputs.sizes)), np.float32)

    def of(self, leaves: list[np.ndarray]) -> np.ndarray:
        """Return rows [n, ...] of the observation leaves [n, ...]; the next call overwrites them."""
        inputs = self.inputs
        if not inputs.joined:
            return leaves[inputs.leaves[0]]
        n = len(leaves[0])
        if n > len(self._memory):
            self._memory = np.empty((n, self._memory.shape[1]), np.float32)
        parts = [leaves[index].reshape(n, size) for index, size in zip(inputs.leaves, inputs.sizes, strict=True)]
        return np.concatenate(parts, 1, out=self._memory[:n], casting="unsafe")


def _inputs(layout: RowLayout, leaves: list[int], *, joined: bool = False, scale: float = 1.0) -> Inputs:
    return Inputs(tuple(leaves), tuple(math.prod(layout.leaves[index].shape) for index in leaves), joined, scale)


def _encoders(entries: Any, path: Path) -> Iterator[tuple[Path, nn.Module]]:
    """Yield the (path, encoder) of each leaf."""
    if type(entries) is not Entries:
        raise NotDenseError(f"no compiled kernel for layer {type(entries).__name__}")
    for key, encoder in zip(entries._keys, entries.encoders, strict=True):
        if is_watched(encoder):
            raise NotDenseError(f"{type(encoder).__name__} has hooks or is compiled")
        if isinstance(encoder, Entries):
            yield from _encoders(encoder, (*path, key))
        else:
            yield (*path, key), encoder


def _check_joined(leaf: Leaf, encoder: Any) -> None:
    kind = type(encoder)
    if kind not in (Flat, nn.Identity) or (kind is Flat and encoder._scale != 1.0):
        raise NotDenseError(f"no compiled kernel for layer {kind.__name__} as one of several encoders")
    if not _is_known(leaf.dtype) or (kind is nn.Identity and not _is_vector(leaf)):
        raise NotDenseError(UNKNOWN)


def _index_at(layout: RowLayout, path: Path) -> int:
    for index, leaf in enumerate(layout.leaves):
        if leaf.path == path:
            return index
    raise NotDenseError(UNKNOWN)


def _is_known(dtype: np.dtype) -> bool:
    """Return True if values of this dtype reach torch unchanged; float64 is converted to float32."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype != np.float64


def _is_vector(leaf: Leaf) -> bool:
    return leaf.dtype == np.float32 and len(leaf.shape) == 1


METHODS = {
    name: getattr(DefaultRLModule, name)  # captured at import, before other code can replace them
    for name in (
        "forward_exploration",
        "forward_inference",
        "_forward_exploration",
        "_forward_inference",
        "_forward",
        "__getattribute__",
        "__getattr__",
    )
}
OF_MEMORY = {name: getattr(DefaultRLModule, name) for name in ("_remember", "get_initial_state", "is_stateful")}


class ParallelNet:
    """A compiled network that several threads compute; they share only the weights.

    Args:
        layers: Layers of the network.
        threads: Threads that compute the network.
    """

    def __init__(self, layers: DenseLayers, threads: RowThreads):
        self._layers, self._threads = layers, threads
        self._net = layers.compiled()
        self._copies: list[DenseNet] = []
        self._least_rows = LEAST_MULTIPLICATIONS // max(1, layers.multiplications())

    def forward(
        self, obs: np.ndarray, states: list[np.ndarray], next_states: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Compute the outputs, with several threads if there are enough rows; see `DenseNet.forward()`."""
        if len(obs) < self._least_rows or not self._threads.is_open:
            return self._net.forward(obs, states, next_states)
        while len(self._copies) < self._threads.n - 1:
            self._copies.append(self._layers.compiled())
        return self._net.forward(obs, states, next_states, self._threads.started(), self._copies)


class NativeModule(NativeNet):
    """Replaces the forward methods of a module whenever the results are guaranteed to be equal.

    Args:
        module: The module, which is not modified.
        layout: Layout of its observations.
        device: Device of the observations.
        allowed: False to always use torch.
        dtype: Requested dtype; only "float32" can run natively.
        threads: Threads for large batches.
    """

    def __init__(
        self,
        module: RLModule,
        layout: RowLayout,
        device: torch.device,
        *,
        allowed: bool,
        dtype: str = "float32",
        threads: RowThreads = ALONE,
    ):
        super().__init__(n_threads=threads.n)
        self._threads = threads
        self._module = module
        self._layout = layout
        self._cannot = _why_never(module, layout, device, allowed, dtype)
        self._watch: WeightsWatch | None = None
        self._rows: InputRows | None = None
        self._masks: list[tuple[int, int]] = []  # (leaf index, number of values per row)
        self._next: list[np.ndarray] = []  # recurrent states after the last step
        self.renew()

    def renew(self) -> None:
        """Recheck the layers, weight memory and hooks of the module.

        Must be called before the module acts if it may have changed: methods and hooks are checked only here; layers
        and memory also in each call of `forward()`.
        """
        try:
            if self._cannot:
                raise NotDenseError(self._cannot)
            layers, inputs, self._masks = _layers_of(self._module, self._layout)
        except NotDenseError as reason:
            self._watch = None
            self._leave(reason)
            return
        if self._rows is None or self._rows.inputs != inputs:
            self._rows = InputRows(inputs)
        self._watch = WeightsWatch(_parts_of(self._module))  # before reading addresses: other threads may move weights
        self._take(layers)

    def _compiled(self, layers: DenseLayers) -> Net:
        return layers.compiled() if self._threads.n == 1 else ParallelNet(layers, self._threads)

    def forward(
        self, leaves: list[np.ndarray], states: Sequence[np.ndarray] = ()
    ) -> tuple[np.ndarray, np.ndarray | None, list[np.ndarray]] | None:
        """Compute logits, values and next recurrent states; the next call overwrites all of them.

        Args:
            leaves: Observation leaves [n, ...] with the dtypes of the layout, C-contiguous, n <= max_rows.
            states: Leaves of recurrent states, float32 [n, size], C-contiguous.

        Returns:
            (logits float32 [n, k], values float32 [n] or None, next states like `states`), or None if the module has
            changed and torch must now run it.
        """
        if self._watch is None or not self._watch.holds():
            self.renew()
        if self._net is None or self._rows is None:
            return None
        if states or self._next:
            self._make_next(states)
        logits, values = self._net.forward(self._rows.of(leaves), [*states], self._next)
        first = 0
        for index, size in self._masks:
            rule_out(logits, leaves[index], first)
            first += size
        return logits, values, self._next

    def _make_next(self, states: Sequence[np.ndarray]) -> None:
        """Make room for the states after this step, reusing memory of the same shape."""
        if [state.shape for state in states] != [state.shape for state in self._next]:
            self._next = [np.empty_like(state) for state in states]


def _why_never(module: RLModule, layout: RowLayout, device: torch.device, allowed: bool, dtype: str) -> str:
    """Return why a module cannot run natively regardless of its layers, or ""."""
    if not allowed:
        return "native_inference is False"
    if device.type != "cpu":
        return f"the device is {device}"
    if dtype != "float32":
        return f"inference_dtype is {dtype}"
    if not isinstance(module, DefaultRLModule):
        return f"{type(module._net()).__name__} is not a DefaultRLModule"
    if any(leaf.dtype == object for leaf in layout.leaves):
        return "some parts of the observations are not arrays"
    return ""


def _layers_of(module: Any, layout: RowLayout) -> tuple[DenseLayers, Inputs, list[tuple[int, int]]]:
    """Return the current layers of a module, the leaves that it reads and the masks of its logits.

    Raises:
        NotDenseError: If a layer or method differs from the default networks.
    """
    kind, own = type(module), vars(module)
    for name, method in (METHODS | OF_MEMORY).items():
        if name in own or getattr(kind, name) is not method:
            raise NotDenseError(f"{kind.__name__} overrides {name}()")
    path: Path = () if module._observation_key is None else (module._observation_key,)
    steps, cell = steps_and_cell(module.trunk)
    inputs, trunk = take_inputs(steps, layout, path)
    layers = DenseLayers(sum(inputs.sizes))
    layers.scale = inputs.scale
    features = layers.add_trunk(trunk, cell, () if module.vf_trunk is None else ("actor",))
    policy = layers_in_order(module.pi)
    log_std = policy.pop() if policy and type(policy[-1]) is FreeLogStd else None
    layers.logits = layers.add(policy, features)
    if log_std is not None:
        layers.log_std = weights_of(log_std, "log_std", (layers.n_out(layers.logits),))
    if module.vf is not None:
        if module.vf_trunk is not None:
            vf_steps, vf_cell = steps_and_cell(module.vf_trunk)
            vf_inputs, vf_trunk = take_inputs(vf_steps, layout, path)
            if vf_inputs != inputs:
                raise NotDenseError("its value function reads the observations differently from its policy")
            features = layers.add_trunk(vf_trunk, vf_cell, ("critic",))
        layers.values = layers.add(layers_in_order(module.vf), features)
    if layers.logits < 0 or (module.vf is not None and (layers.values < 0 or layers.n_out(layers.values) != 1)):
        raise NotDenseError("its heads are not linear layers with a single value output")
    n_logits = layers.n_out(layers.logits) * (1 if log_std is None else 2)
    return layers, inputs, mask_leaves(layout, module._mask_key, n_logits)


def steps_and_cell(trunk: Any) -> tuple[list[nn.Module], nn.Module | None]:
    """Return the layers before the LSTM or GRU in the trunk of a default network, and this cell or None.

    Raises:
        NotDenseError: If calling a layer may run code other than its class's `forward()`.
    """
    if type(trunk) not in (LSTMTrunk, GRUTrunk):
        return layers_in_order(trunk), None
    (cell,) = layers_in_order(trunk.lstm if type(trunk) is LSTMTrunk else trunk.gru)
    if is_watched(trunk):
        raise NotDenseError(f"{type(trunk).__name__} has hooks or is compiled")
    return layers_in_order(trunk.steps), cell


def _parts_of(module: Any) -> list[nn.Module]:
    """Return all submodules that `_layers_of()` reads."""
    children = module.trunk, module.pi, module.vf_trunk, module.vf
    return [module, *parts_of(*(child for child in children if child is not None))]
