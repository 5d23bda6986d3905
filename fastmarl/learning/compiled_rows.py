"""Batches with compiled gradients of the PPO loss."""

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastmarl.core.errors import BatchError
from fastmarl.core.native._ppo import MOST_PARTS, SUMS, compute_parts
from fastmarl.core.nets.dense_layers import OBSERVATIONS, NotDenseError
from fastmarl.core.nets.row_threads import RowThreads
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.masks import choices_of
from fastmarl.learning.compiled_batch import CompiledBatch, CompiledGradient, Inputs, counted, few, steps_of, taken
from fastmarl.learning.dense_nets import ADVANTAGES, COUNTS, FIRST_ACTION, LOGP, TARGETS, packed_rows
from fastmarl.learning.ppo import check_choices, check_rows, module_inputs, needed_columns, used_columns

FILLED = {LOGP: torch.finfo(torch.float32).max, ADVANTAGES: 0.0, TARGETS: 0.0, COUNTS: 0.0}  # in rows that do not count
LEAST_CERTAIN = 5.0  # minimum distance of the logit of an almost certain choice from the next one
MOST_UNLIKELY = 1000.0  # maximum distance from the highest logit; rounding would spoil lower probabilities
ROWS_OF_PART = 600  # minimum, as each part copies the weights and adds its gradient


class LossOptions(NamedTuple):
    """Options of `ppo_loss()` for an update."""

    clip: float
    vf_coeff: float
    vf_clip: float | None
    entropy_coeff: float
    kl_coeff: float


class CompiledRows(CompiledBatch):
    """A batch whose PPO loss gradients are computed by compiled code; see `CompiledGradients.rows()`."""

    MOST_UNSEEN = 4096  # rows between comparisons

    def __init__(self, gradient: CompiledGradient, batch: Mapping[str, Any], options: LossOptions):
        self._options = options
        net = gradient.layers.net
        needed = needed_columns(batch, options.vf_coeff, options.kl_coeff)
        shape = batch[Columns.ACTION_LOGP].shape
        check_rows(batch, needed, shape)
        check_choices(gradient.module, batch)
        has_values = options.vf_coeff != 0
        super().__init__(gradient, batch, shape, has_values=has_values)
        if has_values and net.values == OBSERVATIONS:
            raise NotDenseError("it outputs no values")
        read = used_columns(batch, options.vf_coeff, options.kl_coeff) - {*module_inputs(batch)}
        flat = {name: self._in_a_row(batch[name]) for name in read}
        mask = self._action_mask()
        former = flat[Columns.ACTION_DIST_INPUTS] if options.kl_coeff else None
        if former is not None and former.shape != (len(self), net.n_logits):
            raise BatchError(f"expected {Columns.ACTION_DIST_INPUTS!r} of shape {(*shape, net.n_logits)}, got shape "
                             f"{tuple(batch[Columns.ACTION_DIST_INPUTS].shape)}")  # fmt: skip
        targets = flat[Columns.VALUE_TARGETS] if has_values else None
        loss_mask = flat.get(Columns.LOSS_MASK)
        with torch.no_grad():
            rows = packed_rows(
                logp=flat[Columns.ACTION_LOGP], advantages=flat[Columns.ADVANTAGES], targets=targets,
                actions=self._actions(flat), loss_mask=loss_mask, action_mask=mask, former_logits=former,
            )  # fmt: skip
            if loss_mask is not None:  # padding may contain any values
                rows[~loss_mask] = 0
                rows[~loss_mask, LOGP] = torch.finfo(torch.float32).max  # for ratios of 0; other values may overflow
        self._rows = rows.numpy()
        self._kind = {"has_values": has_values, "has_mask": mask is not None, "has_former": former is not None}
        self._n_counted = (rows[:, COUNTS] != 0).reshape(shape[0], -1).sum(1).numpy()  # by sequence

    def _actions(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the actions, [n, choices]."""
        given = batch[Columns.ACTIONS]
        if not isinstance(given, Tensor):
            raise NotDenseError("its actions are nested")
        return given.reshape(len(self), -1)

    def compute(self, numbers: Tensor, threads: RowThreads | None = None) -> dict[str, float]:
        """Overwrite the gradient with the gradient of the given rows; return the statistics of `ppo_loss()`.

        Args:
            numbers: Indices of rows or sequences.
            threads: Threads that compute parts of the minibatch, which do not depend on the number of threads; None to
                compute it as a whole.
        """
        options = self._options
        sums = self._compute(self._inputs, self._rows, numbers.numpy(), options, threads)
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

    def _compute(
        self, inputs: Inputs, rows: Any, order: Any, options: LossOptions, threads: RowThreads | None = None
    ) -> Any:
        """Overwrite the gradient; return the sums named by `SUMS`."""
        n_parts = 1 if threads is None else max(1, min(MOST_PARTS, len(order) * self._length // ROWS_OF_PART))
        ends = [len(order) * k // n_parts for k in range(n_parts + 1)]
        sums = compute_parts(
            [self.gradient.net(None if n_parts == 1 else k, **self._kind) for k in range(n_parts)],
            inputs.obs,
            rows,
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
            self.gradient.add_parts(n_parts, self._trained)
        return sum(sums)

    def compare_with_autograd(self, most: int) -> None:
        """Raise NotDenseError unless compiled code and autograd compute the same gradient.

        The comparison uses at most `most` rows that count, with ratios of 1 and with substitute actions, advantages and
        targets, because the derivatives of actual rows may be 0, for example where ratios are clipped.
        """
        numbers, gradients = self.some(self._batch, most), self.gradient.gradients
        try:
            with torch.enable_grad():
                loss, columns = self._comparable(numbers)
            found = torch.autograd.grad(loss, [*gradients], allow_unused=True)
        except Exception as error:  # raised by the module or about its outputs: autograd will raise it again
            raise NotDenseError(f"a pass with few rows fails: {type(error).__name__}: {error}") from None
        rows = self._rows[steps_of(numbers.numpy(), self._length)]
        rows[:, list(columns)] = torch.stack([*columns.values()], 1).numpy()
        inputs = self._inputs.of(numbers.numpy(), self._length)
        self._compute(inputs, rows, np.arange(len(numbers)), self._comparing)
        self._check_gradients(found)

    @staticmethod
    def some(batch: Mapping[str, Any], most: int) -> Tensor:
        """Return the indices of a few rows that count, or of sequences with such rows; see `few()`."""
        logp = batch[Columns.ACTION_LOGP]
        mask = batch.get(Columns.LOSS_MASK)
        numbers = torch.arange(len(logp), device="cpu") if mask is None else counted(mask)
        return few(numbers, logp.shape[1:].numel(), most)

    @property
    def _comparing(self) -> LossOptions:
        options = self._options
        return LossOptions(0.2, 0.5 if options.vf_coeff else 0.0, None, 0.01, 1.0 if options.kl_coeff else 0.0)

    def _comparable(self, numbers: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Return a loss on these rows, and the columns it substitutes, keyed by position in packed rows."""
        module, options = self.gradient.module, self._comparing
        names = [
            *module_inputs(self._batch),
            Columns.ACTIONS,
            *([Columns.ACTION_DIST_INPUTS] if options.kl_coeff else []),
        ]
        rows = taken({name: self._batch[name] for name in names}, numbers)
        mask = taken({Columns.LOSS_MASK: self._loss_mask()}, numbers)[Columns.LOSS_MASK]
        outputs = module.forward_train(module_inputs(rows))
        kind = module.get_train_action_dist_cls()
        logits = outputs[Columns.ACTION_DIST_INPUTS]
        actions = _second_likeliest(logits.detach(), choices_of(module.action_space), rows[Columns.ACTIONS])
        distribution = kind.from_logits(logits)
        logp, counts = distribution.logp(actions), mask.float()
        advantages = torch.linspace(-1.0, 1.3, mask.numel(), device="cpu").reshape(mask.shape)
        columns = {LOGP: logp.detach(), ADVANTAGES: advantages, COUNTS: counts}
        of_actions = actions.reshape(*mask.shape, -1).unbind(-1)
        gain = logp * advantages + options.entropy_coeff * distribution.entropy()
        if options.vf_coeff:
            values = outputs[Columns.VF_PREDS]
            columns[TARGETS] = (values + (1 + values.abs()) * advantages.flip(0)).detach()
            gain = gain - options.vf_coeff * (values - columns[TARGETS]).square()
        if options.kl_coeff:
            gain = gain - kind.from_logits(rows[Columns.ACTION_DIST_INPUTS]).kl(distribution)
        loss = -gain.masked_fill(~mask, 0.0).sum() / counts.sum()
        filled = {place: column.masked_fill(~mask, FILLED[place]).reshape(-1) for place, column in columns.items()}
        return loss, filled | {FIRST_ACTION + k: each.reshape(-1).float() for k, each in enumerate(of_actions)}

    def _loss_mask(self) -> Tensor:
        mask = self._batch.get(Columns.LOSS_MASK)
        return (
            torch.ones(self._batch[Columns.ACTION_LOGP].shape, dtype=torch.bool, device="cpu") if mask is None else mask
        )


def _second_likeliest(logits: Tensor, choices: list[int], actions: Tensor) -> Tensor:
    """Replace almost certain actions, whose gradient is pure rounding error, with the second most likely ones.

    Args:
        logits: [..., k].
        choices: Number of choices of each action component; empty for continuous actions, which are returned unchanged.
        actions: Actions of the same rows.
    """
    if not choices:
        return actions
    found = []
    given = actions.reshape(*logits.shape[:-1], -1).unbind(-1)
    for of_part, action in zip(logits.split(choices, -1), given, strict=True):
        values, places = of_part.topk(min(2, of_part.shape[-1]))
        gaps = values[..., 0] - values[..., -1]
        is_certain = (action == places[..., 0]) & (gaps > LEAST_CERTAIN) & (gaps < MOST_UNLIKELY)
        found.append(torch.where(is_certain, places[..., -1], action))
    return torch.stack(found, -1).reshape(actions.shape)
