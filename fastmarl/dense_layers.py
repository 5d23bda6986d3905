"""Dense nets as plain data: from torch's layers to what compiled code runs in their place.

A layer is taken only where it is certain what calling it computes: linear layers and known activations of torch's own
classes, in sequences, that nobody hooks into or has compiled.
"""

import math

import torch
from torch import nn

from fastmarl._dense import BEST, DenseNet

ACTIVATIONS = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.SiLU: "silu", nn.ELU: "elu"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OBSERVATIONS = -1  # in place of a layer's index
# Multiplications in one pass, above which torch is quicker: where it has more threads, or we no wide vectors.
MOST_AGAINST_THREADS = 4_000_000
MOST_PLAIN = 300_000

Layer = tuple[int, torch.Tensor, torch.Tensor | None, str, float]  # source, weight, bias, activation, alpha


class NotDenseError(Exception):
    """Why something is left to torch."""


class DenseLayers:
    """The layers of a net as they are now, one after the other.

    Args:
        n_obs: numbers in an observation.
    """

    def __init__(self, n_obs: int):
        self._n_obs = n_obs
        self._layers: list[Layer] = []

    def add(self, parts: list[nn.Module], source: int = OBSERVATIONS) -> int:
        """Take layers that follow layer `source`; returns the index of the last one.

        Raises:
            NotDenseError: one of them isn't known.
        """
        follows_linear = False  # other activations would change what other layers get, too
        for part in parts:
            kind = type(part)
            if type(part) is nn.Linear:
                weight = weights_of(part, "weight", (part.out_features, self.n_out(source)))
                bias = None if part._parameters["bias"] is None else weights_of(part, "bias", (part.out_features,))
                self._layers.append((source, weight, bias, "linear", 1.0))
                source = len(self._layers) - 1
            elif kind in ACTIVATIONS and follows_linear:
                self._layers[source] = (*self._layers[source][:3], ACTIVATIONS[kind], getattr(part, "alpha", 1.0))
            else:
                raise NotDenseError(f"{kind.__name__} is not known to it" if kind not in ACTIVATIONS else
                                    f"{kind.__name__} does not follow a linear layer")  # fmt: skip
            follows_linear = kind is nn.Linear
        return source

    def n_out(self, layer: int) -> int:
        """How many numbers a layer gives."""
        return self._n_obs if layer < 0 else self._layers[layer][1].shape[0]

    def key(self) -> tuple:
        """Equal where nothing has changed but numbers in weights."""
        return tuple(
            (source, place_of(weight), place_of(bias), activation, alpha)
            for source, weight, bias, activation, alpha in self._layers
        )

    def compiled(
        self, logits: int, values: int, log_std: torch.Tensor | None, bound: torch.Tensor | None = None
    ) -> DenseNet:
        """What runs them; see DenseNet."""
        layers = [
            (source, weight.detach().numpy(), None if bias is None else bias.detach().numpy(), activation, alpha)
            for source, weight, bias, activation, alpha in self._layers
        ]
        row, limit = (None if tensor is None else tensor.detach().numpy() for tensor in (log_std, bound))
        return DenseNet(self._n_obs, layers, logits, values, row, bound=limit)

    def max_rows(self) -> int:
        """Rows up to which we are quicker than torch."""
        most = math.inf
        if torch.get_num_threads() > 1:
            most = MOST_AGAINST_THREADS
        if BEST == "plain":
            most = MOST_PLAIN
        multiplications = sum(weight.numel() for _, weight, *_ in self._layers)
        return 2**62 if most == math.inf else int(most // max(1, multiplications))


def is_watched(part: nn.Module) -> bool:
    """Whether calling it may do something else than its class's forward()."""
    own = vars(part)
    return "forward" in own or part._compiled_call_impl is not None or any(map(own.__getitem__, HOOKS))


def weights_of(layer: nn.Module, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A layer's parameter, of this shape.

    Raises:
        NotDenseError: it can't be read where it is.
    """
    weights = layer._parameters[name]
    if type(weights) is not nn.Parameter or weights.dtype is not torch.float32 or not weights.is_cpu:
        raise NotDenseError(f"{type(layer).__name__}.{name} is no torch.nn.Parameter of float32 on the CPU")
    if weights.shape != shape or not weights.is_contiguous():
        raise NotDenseError(f"{type(layer).__name__}.{name} is not contiguous, or has shape {list(weights.shape)}")
    return weights


def place_of(weights: torch.Tensor | None) -> tuple | None:
    """Where they lie."""
    return None if weights is None else (weights.data_ptr(), weights.shape)
