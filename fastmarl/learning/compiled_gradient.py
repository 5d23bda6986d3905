"""The gradient of a module's PPO loss by compiled code, compared with what the module itself computes."""

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastmarl.core.columns import Columns
from fastmarl.core.errors import BatchError
from fastmarl.core.inference.backends.dense_layers import OBSERVATIONS, NotDenseError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.masking import in_a_row, mask_of
from fastmarl.core.native._ppo import BEST, SUMS, PPOGradient
from fastmarl.core.spaces.masks import choices_of
from fastmarl.core.spaces.structs import map_struct
from fastmarl.learning.dense_nets import LOGP, DenseNet, gradient_of, needed_layers, packed_rows
from fastmarl.learning.flat_parameters import FlatParameters
from fastmarl.learning.module_layers import check_unwatched, layers_of_module
from fastmarl.learning.ppo import check_rows, module_inputs, needed_columns, ppo_loss

MOST_COMPARED = 256  # rows whose gradients are computed both ways
MOST_SEEN = 16  # rows whose outputs are compared in each update
SMALLEST = 1e-7  # difference of gradients that rounding explains where they are 0
MOST_WEIGHTS = {"plain": 100_000, "avx2": 250_000, "avx512": 600_000}  # above, torch is quicker on one thread
TOLERANCE = 1e-3  # of gradients and outputs in float32, relative to their size


class LossOptions(NamedTuple):
    """Arguments of `ppo_loss()` that an update has."""

    clip: float
    vf_coeff: float
    vf_clip: float | None
    entropy_coeff: float


class DifferentOutputsError(NotDenseError):
    """The module computes something else than the layers that were read."""

    def __init__(self) -> None:
        super().__init__("the module's outputs are not those of its layers")


class CompiledGradient:
    """Reads a module's layers, and writes gradients of its parameters.

    Args:
        module: see `layers_of_module()`.
        parameters: of the module, float32 on the CPU.

    Raises:
        NotDenseError: it is not certain that the module computes just these layers.
    """

    def __init__(self, module: RLModule, parameters: FlatParameters):
        if parameters.device.type != "cpu" or parameters.dtype != torch.float32:
            raise NotDenseError(f"its parameters are {parameters.dtype} on {parameters.device}")
        self.module, self.parameters = module, parameters
        self.layers = layers_of_module(module)
        n_weights = sum(layer.weight.numel() for layer in self.layers.net.layers if layer.weight is not None)
        if n_weights > MOST_WEIGHTS[BEST]:
            raise NotDenseError(f"torch is quicker where there are {n_weights:,} weights")
        self.gradients: dict[Any, Any] = {each: each.grad for each in module.parameters() if each.requires_grad}
        self._nets: dict[tuple[bool, bool], PPOGradient] = {}

    def rows(self, batch: Mapping[str, Any], options: LossOptions) -> "CompiledRows":
        """Prepare a batch, whose columns have as many rows on the same device.

        Raises:
            BatchError: see `ppo_loss()`; or actions are out of range.
            NotDenseError: the observations are no float vectors, or there are no values.
            DifferentOutputsError: see there.
        """
        if torch.is_autocast_enabled("cpu"):
            raise NotDenseError("torch.autocast is on")
        check_unwatched(self.module)
        rows = CompiledRows(self, batch, options)
        rows.compare_outputs()
        return rows

    def net(self, *, has_values: bool, has_mask: bool) -> PPOGradient:
        """Return the compiled code for rows with values or without, with masks or without."""
        if (key := (has_values, has_mask)) not in self._nets:
            net = self.layers.net if has_values else self.layers.net._replace(values=OBSERVATIONS)
            self._nets[key] = gradient_of(needed_layers(net), self.gradients, has_mask=has_mask)
        return self._nets[key]


class CompiledRows:
    """A batch whose gradients are computed by compiled code; see `CompiledGradient.rows()`.

    Attributes:
        gradient: [k] of the last rows.
    """

    def __init__(self, gradient: CompiledGradient, batch: Mapping[str, Any], options: LossOptions):
        self._gradient, self._options, self._batch = gradient, options, batch
        net: DenseNet = gradient.layers.net
        needed = needed_columns(batch, options.vf_coeff)
        n = len(batch[Columns.ACTION_LOGP])
        if batch[Columns.ACTION_LOGP].dim() > 1:
            raise NotDenseError("its rows are sequences")
        check_rows(batch, needed, torch.Size([n]))
        has_values = options.vf_coeff != 0
        if has_values and net.values == OBSERVATIONS:
            raise NotDenseError("it puts out no values")
        obs = gradient.layers.observe(batch[Columns.OBS])
        if not isinstance(obs, Tensor) or obs.dtype != torch.float32 or obs.shape != (n, net.n_obs):
            raise NotDenseError(f"its observations are not float32 [{n}, {net.n_obs}]")
        if obs.device.type != "cpu":
            raise NotDenseError(f"the observations are on {obs.device}")
        mask = self._action_mask(n)
        targets = batch[Columns.VALUE_TARGETS] if has_values else None
        loss_mask = batch.get(Columns.LOSS_MASK)
        with torch.no_grad():
            rows = packed_rows(
                logp=batch[Columns.ACTION_LOGP], advantages=batch[Columns.ADVANTAGES], targets=targets,
                actions=self._actions(n), loss_mask=loss_mask, action_mask=mask,
            )  # fmt: skip
            if loss_mask is not None:  # padding may hold anything
                rows[~loss_mask] = 0
                rows[~loss_mask, LOGP] = torch.finfo(torch.float32).max  # ratios of 0: others may overflow
        self._obs, self._rows = obs.detach().contiguous().numpy(), rows.numpy()
        self._mask = mask
        self.gradient = gradient.parameters.grad
        self._net = gradient.net(has_values=has_values, has_mask=mask is not None)

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
        """Return the actions, [n, choices], in range."""
        net: DenseNet = self._gradient.layers.net
        given = self._batch[Columns.ACTIONS]
        if not isinstance(given, Tensor) or len(given) != n:
            raise NotDenseError("its actions are nested")
        actions = given.reshape(n, -1)
        if actions.shape[1] != net.n_actions or (net.sizes is None and given.dim() == 1):
            raise BatchError(f"expected {net.n_actions} actions in each row, got shape {tuple(given.shape)}")
        if net.sizes is None:
            return actions
        actions = actions.long()
        if (actions < 0).any() or (actions >= torch.tensor(net.sizes, device="cpu")).any():
            raise BatchError(f"expected actions from 0 to less than {net.sizes}, got {int(actions.min())} to "
                             f"{int(actions.max())}")  # fmt: skip
        return actions

    def compute(self, numbers: Tensor) -> dict[str, float]:
        """Overwrite the gradient with that of the rows of these numbers; returns the statistics of `ppo_loss()`."""
        options = self._options
        sums = self._net.compute(
            self._obs, self._rows, numbers.numpy(), clip=options.clip, value_coeff=options.vf_coeff,
            entropy_coeff=options.entropy_coeff, value_clip=options.vf_clip,
        )  # fmt: skip
        found = dict(zip(SUMS, sums.tolist(), strict=True))
        n = max(1.0, found["count"])
        mean = {name: value / n for name, value in found.items()}
        stats = {
            "policy_loss": -mean["surrogate"], "entropy": mean["entropy"], "kl": mean["kl"],
            "clip_fraction": mean["clipped"],
        }  # fmt: skip
        if options.vf_coeff:
            of_errors = mean["squared_error"] - mean["error"] ** 2
            of_targets = mean["squared_target"] - mean["target"] ** 2
            stats["vf_loss"] = mean["vf_loss"]
            stats["vf_explained_var"] = max(-1.0, 1 - of_errors / max(of_targets, sys.float_info.min))
        return stats

    def compare_outputs(self) -> None:
        """Raise DifferentOutputsError unless some rows have the outputs that the module gives them."""
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
        """Raise NotDenseError unless some rows have the gradient that autograd gives them."""
        numbers = self._spread(MOST_COMPARED)
        parameters, gradients = self._gradient.parameters, self._gradient.gradients.values()
        parameters.grad = None
        loss = ppo_loss(self._gradient.module, self._taken(numbers), **self._options._asdict())
        if _has_own_backward(loss):
            raise NotDenseError("its forward pass has a torch.autograd.Function")
        loss.backward()
        by_autograd = [each.clone() for each in gradients]
        rounding = SMALLEST * max(1.0, float(torch.linalg.vector_norm(parameters.grad)))
        parameters.grad = None
        self.compute(numbers)
        for ours, theirs in zip(gradients, by_autograd, strict=True):  # each by itself: some are larger than others
            difference, size = (float(torch.linalg.vector_norm(each)) for each in (ours - theirs, theirs))
            if not difference <= TOLERANCE * size + rounding:
                raise NotDenseError(f"the compiled gradient of a parameter of shape {tuple(ours.shape)} is "
                                    f"{difference:.2g} off autograd's, whose norm is {size:.2g}")  # fmt: skip

    def _spread(self, most: int) -> Tensor:
        """Return the numbers of at most this many rows, from the first one to the last."""
        return torch.linspace(0, len(self) - 1, min(len(self), most), dtype=torch.float64, device="cpu").long()

    def _taken(self, numbers: Tensor) -> dict[str, Any]:
        """Return the batch's rows of these numbers."""
        return {name: map_struct(lambda leaf: leaf[numbers], column) for name, column in self._batch.items()}


def _are_close(ours: Tensor, theirs: Tensor) -> bool:
    finite = theirs[torch.isfinite(theirs)]
    least = TOLERANCE * float(finite.abs().max()) if len(finite) else 0
    is_alike = (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    return is_alike and torch.allclose(ours, theirs, rtol=0, atol=least, equal_nan=True)


def _has_own_backward(loss: Tensor) -> bool:
    """Return whether a torch.autograd.Function was called: a trace shows its forward pass alone."""
    nodes: list[Any] = [loss.grad_fn]
    seen = {None, *nodes}
    for node in nodes:  # which grows
        following = {child for child, _ in node.next_functions} - seen
        seen |= following
        nodes += following
    return any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in nodes)
