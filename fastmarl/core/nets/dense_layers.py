"""Conversion of torch layers to a compiled dense network.

Only layers whose results are known for certain are converted: sequences of torch's linear layers, layer normalisations
and activations, without hooks and not compiled.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from fastmarl.core.modules.layers import Chain
from fastmarl.core.native._dense import BEST, DenseNet
from fastmarl.core.spaces.structs import Path

ACTIVATIONS = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.SiLU: "silu", nn.GELU: "gelu", nn.ELU: "elu"}
CELLS = {nn.LSTM: "lstm", nn.GRU: "gru"}
NATIVE = "native"
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OBSERVATIONS = -1  # in place of a layer index
FASTER = 2  # number of torch threads that are as fast as one native thread
# Multiplications per pass above which torch is faster, if it has more than FASTER threads per native thread.
MOST_AGAINST_THREADS = 4_000_000
MOST_PLAIN = 300_000  # limit for kernels without wide vectors, whatever the number of threads


class Cell(NamedTuple):
    """The recurrent part of an LSTM or GRU.

    Attributes:
        kind: "lstm" or "gru".
        weight, bias: Parameters applied to the state, as in torch.
        states: Paths of h and, for an LSTM, c in the module's state.
    """

    kind: str
    weight: torch.Tensor
    bias: torch.Tensor | None
    states: tuple[Path, ...]


class Layer(NamedTuple):
    """A layer, as passed to DenseNet."""

    source: int
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    activation: str = "linear"
    alpha: float = 1.0  # for ELU
    eps: float | None = None  # layer normalisation only
    cell: Cell | None = None

    @property
    def weights(self) -> list[torch.Tensor | None]:
        """All weights and biases, including those for the recurrent state; None if missing."""
        return [self.weight, self.bias, *([self.cell.weight, self.cell.bias] if self.cell else [])]


class Net(Protocol):
    """Interface of compiled networks, implemented by `DenseNet` and `ParallelNet`."""

    def forward(
        self, obs: np.ndarray, states: list[np.ndarray], next_states: list[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Compute the outputs for rows of observations; see `DenseNet.forward()`."""


class NotDenseError(Exception):
    """Raised, with the reason, if torch must compute a layer."""


class DenseLayers:
    """Collects the layers of a network, in order.

    Args:
        n_obs: Number of values in an observation.

    Attributes:
        layers: The layers added so far.
        scale: Factor for integer observations.
        logits, values, log_std, bound: See DenseNet.
    """

    def __init__(self, n_obs: int):
        self.layers: list[Layer] = []
        self.scale = 1.0
        self.logits = self.values = OBSERVATIONS
        self.log_std: torch.Tensor | None = None
        self.bound: torch.Tensor | None = None
        self._n_obs = n_obs
        self._widths: list[int] = []  # number of outputs of each layer

    def add(self, parts: list[nn.Module], source: int = OBSERVATIONS) -> int:
        """Append layers that follow the layer `source`; return the index of the last one.

        Raises:
            NotDenseError: If a layer has no compiled kernel.
        """
        follows_layer = False  # otherwise, an activation would also change the input of other layers
        for part in parts:
            kind, width = type(part), self.n_out(source)
            if getattr(part, "approximate", "none") != "none":
                raise NotDenseError(f"no compiled kernel for layer {part}")
            if kind is nn.Linear or (kind is nn.LayerNorm and part.normalized_shape == (width,)):
                self._append(part, source, width)
            elif kind in ACTIVATIONS and follows_layer:
                self.activate(-1, part)
            else:
                raise NotDenseError(f"no compiled kernel for layer {kind.__name__}" if kind not in ACTIVATIONS else
                                    f"{kind.__name__} does not follow a linear layer")  # fmt: skip
            follows_layer = kind not in ACTIVATIONS
            source = len(self.layers) - 1
        return source

    def activate(self, layer: int, part: Any) -> None:
        """Set the activation after a layer."""
        activation, alpha = ACTIVATIONS[type(part)], getattr(part, "alpha", 1.0)
        self.layers[layer] = self.layers[layer]._replace(activation=activation, alpha=alpha)

    def _append(self, part: Any, source: int, width: int) -> None:
        """Append a layer with `width` inputs."""
        is_norm = type(part) is nn.LayerNorm
        n_out = width if is_norm else part.out_features
        weight = weights_of(part, "weight", (n_out,) if is_norm else (n_out, width))
        eps = part.eps if is_norm else None
        self.append(Layer(source, weight, weights_of(part, "bias", (n_out,)), eps=eps), n_out)

    def add_trunk(self, steps: list[nn.Module], cell: nn.Module | None, path: Path) -> int:
        """Append layers that read the observations, then an LSTM or GRU; return the index of the last one.

        Args:
            steps, cell: See `steps_and_cell()`.
            path: Path of the cell states "h" and "c".
        """
        last = self.add(steps)
        return last if cell is None else self.add_cell(cell, last, path)

    def add_cell(self, part: Any, source: int, path: Path) -> int:
        """Append a single-layer nn.LSTM or nn.GRU that follows the layer `source`; return its index.

        Its states are "h" and "c" at `path`.

        Raises:
            NotDenseError: If `part` is any other layer, or does not compute with its parameters.
        """
        if type(part) not in CELLS or part.num_layers != 1 or part.bidirectional or part.proj_size:
            raise NotDenseError(f"no compiled kernel for layer {part}")
        kind, n_in, n_out = CELLS[type(part)], self.n_out(source), part.hidden_size
        n_gates = (4 if kind == "lstm" else 3) * n_out
        weight, state_weight = (
            weights_of(part, f"weight_{name}_l0", (n_gates, n)) for name, n in (("ih", n_in), ("hh", n_out))
        )
        bias, state_bias = (
            weights_of(part, f"bias_{name}_l0", (n_gates,)) if part.bias else None for name in ("ih", "hh")
        )
        if weight is None or state_weight is None:
            raise NotDenseError(f"{kind.upper()} has no weights")
        states = tuple((*path, name) for name in ("hc" if kind == "lstm" else "h"))
        layer = Layer(source, weight, bias, cell=Cell(kind, state_weight, state_bias, states))
        used = (weight, state_weight, bias, state_bias) if part.bias else (weight, state_weight)
        if [*map(id, part._flat_weights)] != [*map(id, used)]:
            raise NotDenseError(f"{type(part).__name__} computes with weights other than its parameters")
        return self.append(layer, n_out)

    def append(self, layer: Layer, n_out: int) -> int:
        """Append a layer; return its index."""
        self.layers.append(layer)
        self._widths.append(n_out)
        return len(self.layers) - 1

    def n_out(self, layer: int) -> int:
        """Return the number of outputs of a layer."""
        return self._n_obs if layer < 0 else self._widths[layer]

    def key(self) -> tuple:
        """Return a fingerprint of the layers that does not depend on weight values."""
        layers = [
            (layer.source, *map(memory_of, layer.weights), *layer[3:6], layer.cell and layer.cell.kind)
            for layer in self.layers
        ]
        return *layers, self.scale, self.logits, self.values, memory_of(self.log_std), memory_of(self.bound)

    def compiled(self) -> DenseNet:
        """Create a compiled network from these layers."""
        layers = [
            (layer.source, _array(layer.weight), _array(layer.bias), *layer[3:6],
             layer.cell and (layer.cell.kind, _array(layer.cell.weight), _array(layer.cell.bias)))
            for layer in self.layers
        ]  # fmt: skip
        row, limit = _array(self.log_std), _array(self.bound)
        return DenseNet(self._n_obs, layers, self.logits, self.values, row, scale=self.scale, bound=limit)

    def multiplications(self) -> int:
        """Return the number of multiplications per row."""
        return sum(each.numel() for layer in self.layers for each in layer.weights if each is not None)

    def max_rows(self, n_threads: int) -> int:
        """Return the largest number of rows for which `n_threads` native threads are faster than torch."""
        if BEST == "plain":
            most = MOST_PLAIN
        elif torch.get_num_threads() > FASTER * n_threads:
            most = MOST_AGAINST_THREADS
        else:
            return 2**62
        return most // max(1, self.multiplications())


class NativeNet:
    """A compiled network for a module, if all of its layers can be converted.

    Args:
        former: Previous object for the same module, whose network is reused if only weight values changed.
        n_threads: Number of threads for large batches.

    Attributes:
        backend: "native", or "torch: " followed by the reason.
        max_rows: Largest batch that the compiled network should compute; 0 if torch computes all batches.
    """

    def __init__(self, former: "NativeNet | None" = None, n_threads: int = 1):
        self._net: Net | None = None if former is None else former._net
        self._key: tuple | None = None if former is None else former._key
        self._n_threads = n_threads
        self.max_rows, self.backend = 0, NATIVE

    def _take(self, layers: DenseLayers) -> None:
        """Switch to the compiled network of these layers."""
        if (key := layers.key()) != self._key:
            self._key, self._net = key, self._compiled(layers)
        self.max_rows, self.backend = layers.max_rows(self._n_threads), NATIVE

    def _compiled(self, layers: DenseLayers) -> Net:
        return layers.compiled()

    def _leave(self, reason: NotDenseError) -> None:
        """Switch to torch, for the given reason."""
        self._net = self._key = None
        self.max_rows, self.backend = 0, f"torch: {reason}"


def layers_in_order(part: Any) -> list[nn.Module]:
    """List the layers of a sequence, including nested ones.

    Raises:
        NotDenseError: If calling a layer may run code other than forward() of its class.
    """
    if is_watched(part):
        raise NotDenseError(f"{type(part).__name__} has hooks or is compiled")
    if type(part) not in (Chain, nn.Sequential):
        return [part]
    return [layer for child in part._modules.values() for layer in layers_in_order(child)]


def is_watched(part: nn.Module) -> bool:
    """Return True if calling a layer may run code other than its class's `forward()`."""
    own = vars(part)
    return "forward" in own or part._compiled_call_impl is not None or any(map(own.__getitem__, HOOKS))


def weights_of(layer: nn.Module, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return the parameter `name` of a layer after checking its shape; None if there is none, such as no bias.

    Raises:
        NotDenseError: If the parameter cannot be read in place.
    """
    parameters = layer._parameters
    weights = parameters[name] if name in parameters else getattr(layer, name)  # may be computed
    if weights is not None:
        check_weights(weights, shape, f"{type(layer).__name__}.{name}")
    return weights


def check_weights(weights: torch.Tensor, shape: tuple[int, ...], name: str) -> None:
    """Raise NotDenseError unless compiled code can read the weights in place."""
    if type(weights) is not nn.Parameter or weights.dtype is not torch.float32 or not weights.is_cpu:
        raise NotDenseError(f"{name} is not a float32 torch.nn.Parameter on the CPU")
    if weights.shape != shape or not weights.is_contiguous():
        raise NotDenseError(f"{name} is not contiguous or has the wrong shape, {list(weights.shape)}")


def parts_of(*modules: nn.Module) -> list[nn.Module]:
    """List these modules and all their submodules, each once.

    `torch.nn.Module.modules()` would take as long as many forward passes of a small network.
    """
    found, seen = list(modules), set(modules)
    for part in found:  # grows during the loop
        for child in part._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def memory_of(weights: torch.Tensor | None) -> tuple | None:
    """Return the address, dtype, shape and strides of a tensor, which identify its memory; None for None."""
    return None if weights is None else (weights.data_ptr(), weights.dtype, weights.shape, weights.stride())


def _array(weights: torch.Tensor | None) -> np.ndarray | None:
    return None if weights is None else weights.detach().numpy()
