"""Layers and input batches of a module, in the form used by compiled code."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.masking import COLUMNS, in_a_row, mask_of
from fastmarl.core.native._ppo import MOST_PARTS, PPOGradient
from fastmarl.core.nets.dense_layers import OBSERVATIONS, NotDenseError
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.masks import choices_of
from fastmarl.core.spaces.structs import Path, map_struct
from fastmarl.learning.dense_nets import DenseNet, gradient_of, needed_layers
from fastmarl.learning.module_layers import ModuleLayers

SMALLEST = 1e-7  # difference between zeros that rounding can explain
TOLERANCE = 1e-3  # relative error allowed for float32


class CompiledGradient:
    """Computes the parameter gradients of a module; see `CompiledGradients`."""

    def __init__(self, module: RLModule, gradients: Mapping[Any, Tensor], layers: ModuleLayers):
        self.module, self.gradients, self.layers = module, gradients, layers
        self._nets: dict[Any, PPOGradient] = {}
        self._n = sum(each.numel() for each in gradients)
        self._arrays = {each: gradient.detach().numpy() for each, gradient in gradients.items()}
        self._part_sums = np.zeros((1 + MOST_PARTS, self._n), np.float32)  # gradients of parts, and their sum

    def net(self, part: int | None = None, *, has_values: bool = False, **kind: Any) -> PPOGradient:
        """Return the compiled network for a kind of rows; see `gradient_of()`.

        Args:
            part: Index of a minibatch part, whose gradients `add_parts()` sums; None to overwrite `gradients`.
            has_values: True to compute values too.
            kind: Options of `gradient_of()`.
        """
        if (key := (part, has_values, *kind.items())) not in self._nets:
            gradients = self.gradients if part is None else self._gradients_in(self._part_sums[part])
            self._nets[key] = gradient_of(self.needed(has_values=has_values), gradients, **kind)
        return self._nets[key]

    def _gradients_in(self, row: Any) -> dict[Any, Tensor]:
        pieces = torch.from_numpy(row).split([each.numel() for each in self.gradients])
        return {each: piece.view(each.shape) for each, piece in zip(self.gradients, pieces, strict=True)}

    def add_parts(self, n: int, trained: set[Any]) -> None:
        """Overwrite the gradients of these parameters with the sum over the first `n` parts, added in order."""
        np.add.reduce(self._part_sums[:n], 0, out=self._part_sums[MOST_PARTS])
        end = 0
        for each, array in self._arrays.items():
            begin, end = end, end + array.size
            if each in trained:
                np.copyto(array, self._part_sums[MOST_PARTS, begin:end].reshape(array.shape))

    def needed(self, *, has_values: bool) -> DenseNet:
        """Return the layers required for the logits and, if `has_values`, for the values."""
        net = self.layers.net
        return needed_layers(net if has_values else net._replace(values=OBSERVATIONS))


class Inputs(NamedTuple):
    """Inputs of a network: observations, float32 [n, n_obs], and the recurrent states of each sequence."""

    obs: Any
    states: list[Any]

    def of(self, numbers: Any, length: int) -> "Inputs":
        """Return copies of the sequences with these indices."""
        return Inputs(self.obs[steps_of(numbers, length)], [state[numbers] for state in self.states])


class CompiledBatch:
    """A batch of inputs for compiled code.

    Args:
        gradient: Compiled code of the module.
        batch: Columns, which include the module inputs.
        shape: Shape of the rows: [n], or [N, T] for sequences.
        has_values: True if values are needed.

    Attributes:
        gradient: As passed.
        trained: Parameters that receive gradients.

    Raises:
        NotDenseError: If compiled code does not support the batch.
    """

    def __init__(self, gradient: CompiledGradient, batch: Mapping[str, Any], shape: torch.Size, *, has_values: bool):
        self.gradient, self._batch, self._n = gradient, batch, shape.numel()
        net: DenseNet = gradient.layers.net
        if len(shape) != (2 if net.states else 1):
            raise NotDenseError("its rows are not sequences" if net.states else "its rows are sequences")
        self._length = shape[1] if net.states else 1
        if not self._length:
            raise NotDenseError("its sequences have no steps")
        obs = gradient.layers.observe(self._in_a_row(batch[Columns.OBS]))
        if not isinstance(obs, Tensor) or obs.dtype != torch.float32 or obs.shape != (self._n, net.n_obs):
            raise NotDenseError(f"its observations are not float32 [{self._n}, {net.n_obs}]")
        if obs.device.type != "cpu":
            raise NotDenseError(f"its observations are on {obs.device}")
        used = gradient.needed(has_values=has_values)
        states = [self._state(path, shape[0]) for path in used.states]
        self._inputs = Inputs(obs.detach().contiguous().numpy(), states)
        self.trained: list[Any] = [each for each in used.parameters if each in gradient.gradients]
        self._trained = set(self.trained)

    def __len__(self) -> int:
        return self._n

    def _in_a_row(self, column: Any) -> Any:
        """Return the column with the steps of all sequences concatenated."""
        return map_struct(lambda leaf: leaf.flatten(0, 1) if self.gradient.layers.net.states else leaf, column)

    def _state(self, path: Path, n: int) -> Any:
        """Return the states at a path, float32 [n, size]."""
        leaf: Any = self._batch.get(Columns.STATE_IN)
        try:
            for key in path:
                leaf = leaf[key]
        except (KeyError, TypeError):
            raise NotDenseError(f"its state {path} is missing in {Columns.STATE_IN!r}") from None
        if not isinstance(leaf, Tensor) or leaf.dtype != torch.float32 or not leaf.is_cpu:
            raise NotDenseError(f"its state {path} is not float32 on the CPU")
        return leaf.detach().reshape(n, -1).contiguous().numpy()

    def _action_mask(self) -> Tensor | None:
        """Return the mask that the module or `forward_train()` applies to the logits, [n, choices], or None."""
        module, key = self.gradient.module, self.gradient.layers.mask_key
        if not (choices := choices_of(module.action_space)):
            return None
        if key is not None and not module.masks_actions and any(name in self._batch for name in COLUMNS):
            raise NotDenseError("its rows have masks in addition to those in observations")
        mask = mask_of(module, self._batch, ()) if key is None else self._batch[Columns.OBS][key]
        return None if mask is None else in_a_row(self._in_a_row(mask), (self._n, sum(choices)))

    def _check_gradients(self, found: Any) -> None:
        """Raise NotDenseError unless the compiled gradients equal autograd's, `found`, where None means zeros."""
        gradients = self.gradient.gradients
        theirs = [torch.zeros_like(each) if of is None else of for each, of in zip(gradients, found, strict=True)]
        off = [
            of - ours if each in self._trained else of
            for of, (each, ours) in zip(theirs, gradients.items(), strict=True)
        ]
        norms = torch.stack(torch._foreach_norm([*theirs, *off])).tolist()
        sizes, differences = norms[: len(theirs)], norms[len(theirs) :]
        rounding = SMALLEST * max(1.0, sum(size**2 for size in sizes) ** 0.5)
        for each, size, difference in zip(gradients, sizes, differences, strict=True):  # one by one: their norms differ
            if not difference <= TOLERANCE * size + rounding:
                raise NotDenseError(f"the compiled gradient of a parameter of shape {tuple(each.shape)} differs by "
                                    f"{difference:.2g} from autograd's, whose norm is {size:.2g}")  # fmt: skip


def steps_of(numbers: Any, length: int) -> Any:
    """Return the row indices of these sequences."""
    return (numbers[:, None] * length + np.arange(length)).reshape(-1)


def counted(mask: Tensor) -> Tensor:
    """Return the indices of the rows whose mask is True or, for sequences, of the sequences with such a row."""
    if not mask.any():
        raise NotDenseError("all rows are masked out")
    return mask.reshape(len(mask), -1).any(1).nonzero().squeeze(1)


def few(numbers: Tensor, length: int, most: int) -> Tensor:
    """Return an evenly spaced selection of these sequence indices.

    The number of indices, some possibly repeated, is at least 2 and differs from the sequence length. If possible, the
    selected sequences have at most `most` steps in total.
    """
    n = max(2, min(len(numbers), most // max(1, length)))
    places = torch.linspace(0, len(numbers) - 1, n + (n == length), dtype=torch.float64, device="cpu")
    return numbers[places.long()]


def taken(batch: Mapping[str, Any], numbers: Tensor) -> dict[str, Any]:
    """Return the rows of the batch with these indices."""
    return {name: map_struct(lambda leaf: leaf[numbers], column) for name, column in batch.items()}
