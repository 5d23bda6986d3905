"""Compiled gradients of a module's PPO loss, verified against the module itself."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastmarl.core.columns import Columns
from fastmarl.core.errors import BatchError
from fastmarl.core.inference.backends.dense_layers import OBSERVATIONS, NotDenseError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.masking import in_a_row, mask_of
from fastmarl.core.native._ppo import SUMS, PPOGradient
from fastmarl.core.spaces.masks import choices_of
from fastmarl.core.spaces.structs import map_struct
from fastmarl.learning.dense_nets import LOGP, DenseNet, gradient_of, needed_layers, packed_rows
from fastmarl.learning.module_layers import check_unwatched, layers_of_module
from fastmarl.learning.ppo import check_actions, check_rows, module_inputs, needed_columns, ppo_loss

MOST_COMPARED = 256  # rows whose gradients are computed both by compiled code and by autograd
MOST_SEEN = 16  # rows whose outputs are compared in each update
SMALLEST = 1e-7  # difference that rounding explains between gradients of 0
TOLERANCE = 1e-3  # of gradients and outputs in float32, relative to their size


class LossOptions(NamedTuple):
    """The arguments of `ppo_loss()` that an update sets."""

    clip: float
    vf_coeff: float
    vf_clip: float | None
    entropy_coeff: float
    kl_coeff: float


class DifferentOutputsError(NotDenseError):
    """The module's outputs differ from those of the layers that were read."""

    def __init__(self) -> None:
        super().__init__("the module's outputs differ from those of its layers")


class CompiledGradients:
    """Compiled code for a module, which is read again after it has changed.

    Args:
        module: Module that `layers_of_module()` can read.
        gradients: Trained parameter -> tensor that receives its gradient.
    """

    def __init__(self, module: RLModule, gradients: Mapping[Any, Tensor]):
        self._module, self._gradients = module, gradients
        self._known: CompiledGradient | None = None

    def rows(self, batch: Mapping[str, Any], options: LossOptions) -> "CompiledRows":
        """Prepare a batch, whose columns have equally many rows on one device.

        Raises:
            BatchError: If `ppo_loss()` would raise it, or actions are out of range.
            NotDenseError: If it is not certain that the module computes only its layers, or compiled code does not
                support the batch.
        """
        known, self._known = self._known, None
        if known is not None:
            with suppress(DifferentOutputsError):  # the module has changed
                rows = known.rows(batch, options)
                self._known = known
                return rows
        gradient = CompiledGradient(self._module, self._gradients)
        rows = gradient.rows(batch, options)
        rows.compare_with_autograd()
        self._known = gradient
        return rows


class CompiledGradient:
    """Reads a module's layers, and computes gradients of its parameters. See `CompiledGradients`."""

    def __init__(self, module: RLModule, gradients: Mapping[Any, Tensor]):
        for each in gradients.values():
            if each.device.type != "cpu" or each.dtype != torch.float32:
                raise NotDenseError(f"its parameters are {each.dtype} on {each.device}")
        if module.action_space is None:
            raise NotDenseError("its action space is unknown")
        self.module, self.gradients = module, gradients
        self.layers = layers_of_module(module)
        self._nets: dict[tuple[bool, ...], PPOGradient] = {}

    def rows(self, batch: Mapping[str, Any], options: LossOptions) -> "CompiledRows":
        """Prepare a batch. Raises DifferentOutputsError if the module has changed."""
        if torch.is_autocast_enabled("cpu"):
            raise NotDenseError("torch.autocast is on")
        check_unwatched(self.module)
        rows = CompiledRows(self, batch, options)
        rows.compare_outputs()
        return rows

    def net(self, *, has_values: bool, has_mask: bool, has_former: bool) -> PPOGradient:
        """Return the compiled code for rows with or without values, masks and former logits."""
        if (key := (has_values, has_mask, has_former)) not in self._nets:
            net = self.needed(has_values=has_values)
            self._nets[key] = gradient_of(net, self.gradients, has_mask=has_mask, has_former=has_former)
        return self._nets[key]

    def needed(self, *, has_values: bool) -> DenseNet:
        """Return the layers on which the loss depends."""
        net = self.layers.net
        return needed_layers(net if has_values else net._replace(values=OBSERVATIONS))


class CompiledRows:
    """A batch whose gradients are computed by compiled code; see `CompiledGradients.rows()`.

    Attributes:
        trained: Parameters that receive gradients.
    """

    def __init__(self, gradient: CompiledGradient, batch: Mapping[str, Any], options: LossOptions):
        self._gradient, self._options, self._batch = gradient, options, batch
        net: DenseNet = gradient.layers.net
        needed = needed_columns(batch, options.vf_coeff, options.kl_coeff)
        n = len(batch[Columns.ACTION_LOGP])
        if batch[Columns.ACTION_LOGP].dim() > 1:
            raise NotDenseError("its rows are sequences")
        check_actions(gradient.module, batch[Columns.ACTIONS], torch.Size([n]))
        check_rows(batch, needed, torch.Size([n]))
        has_values = options.vf_coeff != 0
        if has_values and net.values == OBSERVATIONS:
            raise NotDenseError("it outputs no values")
        obs = gradient.layers.observe(batch[Columns.OBS])
        if not isinstance(obs, Tensor) or obs.dtype != torch.float32 or obs.shape != (n, net.n_obs):
            raise NotDenseError(f"its observations are not float32 [{n}, {net.n_obs}]")
        if obs.device.type != "cpu":
            raise NotDenseError(f"the observations are on {obs.device}")
        mask = self._action_mask(n)
        former = batch[Columns.ACTION_DIST_INPUTS] if options.kl_coeff else None
        if former is not None and former.shape != (n, net.n_logits):
            raise BatchError(f"expected {Columns.ACTION_DIST_INPUTS!r} of shape {(n, net.n_logits)}, got shape "
                             f"{tuple(former.shape)}")  # fmt: skip
        targets = batch[Columns.VALUE_TARGETS] if has_values else None
        loss_mask = batch.get(Columns.LOSS_MASK)
        with torch.no_grad():
            rows = packed_rows(
                logp=batch[Columns.ACTION_LOGP], advantages=batch[Columns.ADVANTAGES], targets=targets,
                actions=self._actions(n), loss_mask=loss_mask, action_mask=mask, former_logits=former,
            )  # fmt: skip
            if loss_mask is not None:  # padding may have any values
                rows[~loss_mask] = 0
                rows[~loss_mask, LOGP] = torch.finfo(torch.float32).max  # gives ratios of 0; other values may overflow
        self._obs, self._rows = obs.detach().contiguous().numpy(), rows.numpy()
        self._mask = mask
        self._net = gradient.net(has_values=has_values, has_mask=mask is not None, has_former=former is not None)
        reached = gradient.needed(has_values=has_values).parameters
        self.trained: list[Any] = [each for each in reached if each in gradient.gradients]

    def __len__(self) -> int:
        return len(self._rows)

    def _action_mask(self, n: int) -> Tensor | None:
        module, batch = self._gradient.module, self._batch
        key = self._gradient.layers.mask_key
        if not choices_of(module.action_space):
            return None
        mask = mask_of(module, batch, ()) if key is None else batch[Columns.OBS][key]
        return None if mask is None else in_a_row(mask, (n, sum(choices_of(module.action_space))))

    def _actions(self, n: int) -> Tensor:
        """Return the actions, [n, choices]. Raises BatchError if one is out of range."""
        net: DenseNet = self._gradient.layers.net
        given = self._batch[Columns.ACTIONS]
        if not isinstance(given, Tensor):
            raise NotDenseError("its actions are nested")
        actions = given.reshape(n, -1)
        if net.sizes is None:
            return actions
        actions = actions.long()
        if (actions < 0).any() or (actions >= torch.tensor(net.sizes, device="cpu")).any():
            raise BatchError(f"expected actions from 0 to less than {net.sizes}, got {int(actions.min())} to "
                             f"{int(actions.max())}")  # fmt: skip
        return actions

    def compute(self, numbers: Tensor) -> dict[str, float]:
        """Overwrite the gradient with that of the given row numbers; returns the statistics of `ppo_loss()`."""
        options = self._options
        sums = self._net.compute(
            self._obs, self._rows, numbers.numpy(), clip=options.clip, value_coeff=options.vf_coeff,
            entropy_coeff=options.entropy_coeff, value_clip=options.vf_clip, kl_coeff=options.kl_coeff,
        )  # fmt: skip
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

    def compare_outputs(self) -> None:
        """Raise DifferentOutputsError unless compiled code and the module agree on the outputs of a sample of rows."""
        numbers = self._spread(MOST_SEEN)
        self.compute(numbers)
        logits, values = self._net.outputs(len(numbers))
        with torch.no_grad():
            outputs = self._gradient.module.forward_train(module_inputs(self._taken(numbers)))
        ours, theirs = torch.from_numpy(logits), outputs[Columns.ACTION_DIST_INPUTS]
        if (log_std := self._gradient.layers.net.log_std) is not None:
            ours = torch.cat([ours, log_std.detach().expand_as(ours)], 1)
        if self._mask is not None:
            ours, theirs = (each.masked_fill(self._mask[numbers] == 0, 0) for each in (ours, theirs))
        pairs = [(ours, theirs)]
        if values is not None:
            pairs.append((torch.from_numpy(values), outputs.get(Columns.VF_PREDS, torch.empty(0, device="cpu"))))
        if not all(_are_close(ours, theirs) for ours, theirs in pairs):
            raise DifferentOutputsError

    def compare_with_autograd(self) -> None:
        """Raise NotDenseError unless compiled code and autograd give the same gradient for a sample of rows."""
        numbers = self._spread(MOST_COMPARED)
        gradients = self._gradient.gradients
        with torch.enable_grad():
            loss = ppo_loss(self._gradient.module, self._taken(numbers), **self._options._asdict())
        if _has_own_backward(loss):
            raise NotDenseError("its forward pass has a torch.autograd.Function")
        found = torch.autograd.grad(loss, [*gradients], allow_unused=True)
        by_autograd = [torch.zeros_like(each) if of is None else of for each, of in zip(gradients, found, strict=True)]
        rounding = SMALLEST * max(1.0, sum(float(each.square().sum()) for each in by_autograd) ** 0.5)
        for each in gradients.values():
            each.zero_()
        self.compute(numbers)
        for ours, theirs in zip(gradients.values(), by_autograd, strict=True):  # one by one, as their norms differ
            difference, size = (float(torch.linalg.vector_norm(each)) for each in (ours - theirs, theirs))
            if not difference <= TOLERANCE * size + rounding:
                raise NotDenseError(f"the compiled gradient of a parameter of shape {tuple(ours.shape)} is "
                                    f"{difference:.2g} off autograd's, whose norm is {size:.2g}")  # fmt: skip

    def _spread(self, most: int) -> Tensor:
        """Return at most `most` row numbers, evenly spread from the first row to the last."""
        return torch.linspace(0, len(self) - 1, min(len(self), most), dtype=torch.float64, device="cpu").long()

    def _taken(self, numbers: Tensor) -> dict[str, Any]:
        """Return the batch's rows with the given numbers."""
        return {name: map_struct(lambda leaf: leaf[numbers], column) for name, column in self._batch.items()}


def _are_close(ours: Tensor, theirs: Tensor) -> bool:
    finite = theirs[torch.isfinite(theirs)]
    least = TOLERANCE * float(finite.abs().max()) if len(finite) else 0
    is_alike = (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    return is_alike and torch.allclose(ours, theirs, rtol=0, atol=least, equal_nan=True)


def _has_own_backward(loss: Tensor) -> bool:
    """Return True if the loss depends on a torch.autograd.Function, of which a trace shows only the forward pass."""
    nodes: list[Any] = [loss.grad_fn]
    seen = {None, *nodes}
    for node in nodes:  # grows during the loop
        following = {child for child, _ in node.next_functions} - seen
        seen |= following
        nodes += following
    return any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in nodes)
