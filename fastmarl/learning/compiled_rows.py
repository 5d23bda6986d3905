"""Batches whose gradients compiled code computes."""

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastmarl.core.errors import BatchError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.masking import in_a_row, mask_of
from fastmarl.core.native._ppo import MOST_PARTS, SUMS, PPOGradient, compute_parts
from fastmarl.core.nets.dense_layers import OBSERVATIONS, NotDenseError
from fastmarl.core.nets.row_threads import RowThreads
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.masks import choices_of
from fastmarl.core.spaces.structs import Path, map_struct
from fastmarl.learning.dense_nets import (
    ADVANTAGES,
    COUNTS,
    LOGP,
    TARGETS,
    DenseNet,
    gradient_of,
    needed_layers,
    packed_rows,
)  # fmt: skip
from fastmarl.learning.module_layers import ModuleLayers
from fastmarl.learning.ppo import check_choices, check_rows, module_inputs, needed_columns, used_columns

FILLED = {LOGP: torch.finfo(torch.float32).max, ADVANTAGES: 0.0, TARGETS: 0.0, COUNTS: 0.0}  # in rows that don't count
ROWS_OF_PART = 600  # at least; each part copies the weights and adds its gradient
SMALLEST = 1e-7  # difference that rounding explains between gradients of 0
TOLERANCE = 1e-3  # of gradients in float32, relative to their size


class LossOptions(NamedTuple):
    """The arguments of `ppo_loss()` that an update sets."""

    clip: float
    vf_coeff: float
    vf_clip: float | None
    entropy_coeff: float
    kl_coeff: float


class CompiledGradient:
    """Computes gradients of a module's parameters. See `CompiledGradients`."""

    def __init__(self, module: RLModule, gradients: Mapping[Any, Tensor], layers: ModuleLayers):
        self.module, self.gradients, self.layers = module, gradients, layers
        self._nets: dict[Any, PPOGradient] = {}
        self._n = sum(each.numel() for each in gradients)
        self._arrays = {each: gradient.detach().numpy() for each, gradient in gradients.items()}
        self._part_sums = np.zeros((1 + MOST_PARTS, self._n), np.float32)  # gradients of parts in a row, and their sum

    def net(self, part: int | None, *, has_values: bool, has_mask: bool, has_former: bool) -> PPOGradient:
        """Return the compiled code for rows with or without values, masks and former logits.

        Args:
            part: Number of a part, whose gradients `add_parts()` reads; None: overwrite `gradients`.
        """
        if (key := (part, has_values, has_mask, has_former)) not in self._nets:
            gradients = self.gradients if part is None else self._gradients_in(self._part_sums[part])
            net = self.needed(has_values=has_values)
            self._nets[key] = gradient_of(net, gradients, has_mask=has_mask, has_former=has_former)
        return self._nets[key]

    def _gradients_in(self, row: Any) -> dict[Any, Tensor]:
        pieces = torch.from_numpy(row).split([each.numel() for each in self.gradients])
        return {each: piece.view(each.shape) for each, piece in zip(self.gradients, pieces, strict=True)}

    def add_parts(self, n: int, trained: set[Any]) -> None:
        """Overwrite the gradients of these parameters with the sum of n parts, which are added in order."""
        np.add.reduce(self._part_sums[:n], 0, out=self._part_sums[MOST_PARTS])
        end = 0
        for each, array in self._arrays.items():
            begin, end = end, end + array.size
            if each in trained:
                np.copyto(array, self._part_sums[MOST_PARTS, begin:end].reshape(array.shape))

    def needed(self, *, has_values: bool) -> DenseNet:
        """Return the layers on which the loss depends."""
        net = self.layers.net
        return needed_layers(net if has_values else net._replace(values=OBSERVATIONS))


class Inputs(NamedTuple):
    """A batch as compiled code reads it: float32 [n, n_obs], rows of `packed_rows()`, and states of each sequence."""

    obs: Any
    rows: Any
    states: list[Any]

    def of(self, numbers: Any, length: int) -> "Inputs":
        """Return copies of the sequences with these numbers."""
        steps = (numbers[:, None] * length + np.arange(length)).reshape(-1)
        return Inputs(self.obs[steps], self.rows[steps], [state[numbers] for state in self.states])


class CompiledRows:
    """A batch whose gradients are computed by compiled code; see `CompiledGradients.rows()`.

    Attributes:
        trained: Parameters that receive gradients.
    """

    def __init__(self, gradient: CompiledGradient, batch: Mapping[str, Any], options: LossOptions):
        self._gradient, self._options, self._batch = gradient, options, batch
        net: DenseNet = gradient.layers.net
        needed = needed_columns(batch, options.vf_coeff, options.kl_coeff)
        shape = batch[Columns.ACTION_LOGP].shape
        if len(shape) != (2 if net.states else 1):
            raise NotDenseError("its rows are no sequences" if net.states else "its rows are sequences")
        check_rows(batch, needed, shape)
        check_choices(gradient.module, batch)
        has_values = options.vf_coeff != 0
        if has_values and net.values == OBSERVATIONS:
            raise NotDenseError("it outputs no values")
        self._length = shape[1] if net.states else 1
        if not self._length:
            raise NotDenseError("its sequences have no steps")
        read = used_columns(batch, options.vf_coeff, options.kl_coeff) - {Columns.STATE_IN}
        flat = {name: map_struct(self._in_a_row, batch[name]) for name in read}
        n = shape.numel()
        obs = gradient.layers.observe(flat[Columns.OBS])
        if not isinstance(obs, Tensor) or obs.dtype != torch.float32 or obs.shape != (n, net.n_obs):
            raise NotDenseError(f"its observations are not float32 [{n}, {net.n_obs}]")
        if obs.device.type != "cpu":
            raise NotDenseError(f"the observations are on {obs.device}")
        mask = self._action_mask(flat, n)
        former = flat[Columns.ACTION_DIST_INPUTS] if options.kl_coeff else None
        if former is not None and former.shape != (n, net.n_logits):
            raise BatchError(f"expected {Columns.ACTION_DIST_INPUTS!r} of shape {(*shape, net.n_logits)}, got shape "
                             f"{tuple(batch[Columns.ACTION_DIST_INPUTS].shape)}")  # fmt: skip
        targets = flat[Columns.VALUE_TARGETS] if has_values else None
        loss_mask = flat.get(Columns.LOSS_MASK)
        with torch.no_grad():
            rows = packed_rows(
                logp=flat[Columns.ACTION_LOGP], advantages=flat[Columns.ADVANTAGES], targets=targets,
                actions=self._actions(flat, n), loss_mask=loss_mask, action_mask=mask, former_logits=former,
            )  # fmt: skip
            if loss_mask is not None:  # padding may have any values
                rows[~loss_mask] = 0
                rows[~loss_mask, LOGP] = torch.finfo(torch.float32).max  # gives ratios of 0; other values may overflow
        used = gradient.needed(has_values=has_values)
        states = [self._state(path, len(batch[Columns.ACTION_LOGP])) for path in used.states]
        self._inputs = Inputs(obs.detach().contiguous().numpy(), rows.numpy(), states)
        self._mask = mask
        self._kind = {"has_values": has_values, "has_mask": mask is not None, "has_former": former is not None}
        self._n_counted = (rows[:, COUNTS] != 0).reshape(shape[0], -1).sum(1).numpy()  # by sequence
        self.trained: list[Any] = [each for each in used.parameters if each in gradient.gradients]
        self._trained = set(self.trained)

    def __len__(self) -> int:
        return len(self._inputs.rows)

    def _in_a_row(self, leaf: Tensor) -> Tensor:
        """Return the steps of all sequences in a row."""
        return leaf.flatten(0, 1) if self._gradient.layers.net.states else leaf

    def _state(self, path: Path, n: int) -> Any:
        """Return the states at a path, float32 [n, size]."""
        leaf: Any = self._batch.get(Columns.STATE_IN)
        try:
            for key in path:
                leaf = leaf[key]
        except (KeyError, TypeError):
            raise NotDenseError(f"there is no {path} in {Columns.STATE_IN!r}") from None
        if not isinstance(leaf, Tensor) or leaf.dtype != torch.float32 or not leaf.is_cpu:
            raise NotDenseError(f"its state {path} is not float32 on the CPU")
        return leaf.detach().reshape(n, -1).contiguous().numpy()

    def _action_mask(self, batch: Mapping[str, Any], n: int) -> Tensor | None:
        module = self._gradient.module
        key = self._gradient.layers.mask_key
        if not choices_of(module.action_space):
            return None
        mask = mask_of(module, batch, ()) if key is None else batch[Columns.OBS][key]
        return None if mask is None else in_a_row(mask, (n, sum(choices_of(module.action_space))))

    def _actions(self, batch: Mapping[str, Any], n: int) -> Tensor:
        """Return the actions, [n, choices]."""
        given = batch[Columns.ACTIONS]
        if not isinstance(given, Tensor):
            raise NotDenseError("its actions are nested")
        return given.reshape(n, -1)

    def compute(self, numbers: Tensor, threads: RowThreads | None = None) -> dict[str, float]:
        """Overwrite the gradient with that of the given row numbers; returns the statistics of `ppo_loss()`.

        Args:
            threads: Compute parts of the minibatch, which do not depend on the number of threads; None: no parts.
        """
        options = self._options
        sums = self._compute(self._inputs, numbers.numpy(), options, threads)
        found = dict(zip(SUMS, sums.tolist(), strict=True))
        n = max(1.0, found["count"])
        mean = {name: value / n for name, value in found.items()}
        stats = {
            "policy_loss": -mean["surrogate"], "entropy": mean["entropy"], "kl": mean["kl"],
            "clip_fraction": mean["clipped"],
        }  # fmt: skip
        if options.kl_coeff:
            stats["mean_kl_loss"] = mean["former_kl"]
        if options.vf_coeff:
            of_errors = mean["squared_error"] - mean["error"] ** 2
            of_targets = mean["squared_target"] - mean["target"] ** 2
            stats["vf_loss"] = mean["vf_loss"]
            stats["vf_explained_var"] = max(-1.0, 1 - of_errors / max(of_targets, sys.float_info.min))
        return stats

    def _compute(self, inputs: "Inputs", order: Any, options: LossOptions, threads: RowThreads | None = None) -> Any:
        """Overwrite the gradient; returns SUMS."""
        n_parts = 1 if threads is None else max(1, min(MOST_PARTS, len(order) * self._length // ROWS_OF_PART))
        ends = [len(order) * k // n_parts for k in range(n_parts + 1)]
        sums = compute_parts(
            [self._gradient.net(None if n_parts == 1 else k, **self._kind) for k in range(n_parts)],
            inputs.obs,
            inputs.rows,
            [order[begin:end] for begin, end in pairwise(ends)],
            None if threads is None or n_parts == 1 else threads.started(),
            length=self._length,
            states=inputs.states,
            n_counted=-1 if n_parts == 1 else int(self._n_counted[order].sum()),
            clip=options.clip,
            value_coeff=options.vf_coeff,
            entropy_coeff=options.entropy_coeff,
            value_clip=options.vf_clip,
            kl_coeff=options.kl_coeff,
        )
        if n_parts > 1:
            self._gradient.add_parts(n_parts, self._trained)
        return sum(sums)

    def compare_with_autograd(self, most: int) -> None:
        """Raise NotDenseError unless compiled code and autograd compute the same gradient.

        The rows are at most `most` of those that count, with ratios of 1, and with other advantages and targets:
        derivatives of actual rows may be 0, for example where ratios are clipped.
        """
        numbers, gradients = few(self._batch, most), self._gradient.gradients
        try:
            with torch.enable_grad():
                loss, columns = self._comparable(numbers)
            found = torch.autograd.grad(loss, [*gradients], allow_unused=True)
        except Exception as error:  # the module's, or about its outputs: autograd will raise it again
            raise NotDenseError(f"a pass with few rows fails: {type(error).__name__}: {error}") from None
        taken = self._inputs.of(numbers.numpy(), self._length)
        taken.rows[:, list(columns)] = torch.stack([*columns.values()], 1).numpy()
        self._compute(taken, np.arange(len(numbers)), self._comparing)
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
                raise NotDenseError(f"the compiled gradient of a parameter of shape {tuple(each.shape)} is "
                                    f"{difference:.2g} off autograd's, whose norm is {size:.2g}")  # fmt: skip

    @property
    def _comparing(self) -> LossOptions:
        options = self._options
        return LossOptions(0.2, 0.5 if options.vf_coeff else 0.0, None, 0.01, 1.0 if options.kl_coeff else 0.0)

    def _comparable(self, numbers: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Return a loss of these rows, and columns that replace theirs, by their place in packed rows."""
        module, options = self._gradient.module, self._comparing
        names = [
            *module_inputs(self._batch),
            Columns.ACTIONS,
            *([Columns.ACTION_DIST_INPUTS] if options.kl_coeff else []),
        ]
        rows = taken({name: self._batch[name] for name in names}, numbers)
        mask = taken({Columns.LOSS_MASK: self._loss_mask()}, numbers)[Columns.LOSS_MASK]
        outputs = module.forward_train(module_inputs(rows))
        kind = module.get_train_action_dist_cls()
        distribution = kind.from_logits(outputs[Columns.ACTION_DIST_INPUTS])
        logp, counts = distribution.logp(rows[Columns.ACTIONS]), mask.float()
        advantages = torch.linspace(-1.0, 1.3, mask.numel(), device="cpu").reshape(mask.shape)
        columns = {LOGP: logp.detach(), ADVANTAGES: advantages, COUNTS: counts}
        gain = logp * advantages + options.entropy_coeff * distribution.entropy()
        if options.vf_coeff:
            values = outputs[Columns.VF_PREDS]
            columns[TARGETS] = (values + (1 + values.abs()) * advantages.flip(0)).detach()
            gain = gain - options.vf_coeff * (values - columns[TARGETS]).square()
        if options.kl_coeff:
            gain = gain - kind.from_logits(rows[Columns.ACTION_DIST_INPUTS]).kl(distribution)
        loss = -gain.masked_fill(~mask, 0.0).sum() / counts.sum()
        return loss, {place: column.masked_fill(~mask, FILLED[place]).reshape(-1) for place, column in columns.items()}

    def _loss_mask(self) -> Tensor:
        mask = self._batch.get(Columns.LOSS_MASK)
        return (
            torch.ones(self._batch[Columns.ACTION_LOGP].shape, dtype=torch.bool, device="cpu") if mask is None else mask
        )


def counted(batch: Mapping[str, Any]) -> Tensor:
    """Return the numbers of the rows that count, or of the sequences with such rows."""
    mask = batch.get(Columns.LOSS_MASK)
    if mask is None:
        return torch.arange(len(batch[Columns.ACTION_LOGP]), device="cpu")
    if not mask.any():
        raise NotDenseError("no row counts")
    return mask.reshape(len(mask), -1).any(1).nonzero().squeeze(1)


def few(batch: Mapping[str, Any], most: int) -> Tensor:
    """Return the numbers of some rows that count, evenly spread, or of sequences with such rows.

    There are at least 2, of which several may be the same; other numbers of sequences than of their steps; and at most
    `most` rows if possible.
    """
    numbers, length = counted(batch), batch[Columns.ACTION_LOGP].shape[1:].numel()
    n = max(2, min(len(numbers), most // max(1, length)))
    places = torch.linspace(0, len(numbers) - 1, n + (n == length), dtype=torch.float64, device="cpu")
    return numbers[places.long()]


def taken(batch: Mapping[str, Any], numbers: Tensor) -> dict[str, Any]:
    """Return the batch's rows with these numbers."""
    return {name: map_struct(lambda leaf: leaf[numbers], column) for name, column in batch.items()}
