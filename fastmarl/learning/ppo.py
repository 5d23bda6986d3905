"""The loss of Proximal Policy Optimization."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fastmarl.columns import Columns
from fastmarl.errors import BatchError, ModuleOutputError
from fastmarl.modules import RLModule

NEEDED = (Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS)


def ppo_loss(
    module: RLModule,
    rows: Mapping[str, Any],
    *,
    clip: float = 0.2,
    vf_coeff: float = 0.5,
    vf_clip: float | None = None,
    entropy_coeff: float = 0.01,
    stats: dict[str, Tensor] | None = None,
) -> Tensor:
    """Clipped surrogate, value error and entropy bonus of a minibatch: Schulman et al. 2017, "Proximal Policy
    Optimization Algorithms", equations 7 and 9.

    Args:
        module: acted when the rows were sampled, maybe with older weights.
        rows: tensors [n, ...], or [B, T, ...] of recurrent modules: "obs", "actions", "action_logp", "advantages",
            "value_targets"; and if they are there, "action_mask", "state_in" [B, ...], and "loss_mask" bool [n] or
            [B, T], without which all rows count.
        clip: how far the probabilities' ratio may go from 1.
        vf_coeff, entropy_coeff: weights of the value error (mean of squares) and of the entropy.
        vf_clip: if given, a row's squared value error counts up to this.
        stats: gets "policy_loss", "vf_loss", "entropy", "kl" (an estimate, Schulman 2020, "Approximating KL
            Divergence": mean of r - 1 - log r) and "clip_fraction", without gradients.

    Returns:
        The loss, a scalar.

    Raises:
        BatchError: a column is missing.
        ModuleOutputError: the module puts out no values.
    """
    if missing := [name for name in (Columns.OBS, *NEEDED) if name not in rows]:
        raise BatchError(f"ppo_loss() needs the columns {missing}; there are {list(rows)}")
    inputs = {name: rows[name] for name in (Columns.OBS, Columns.ACTION_MASK, Columns.STATE_IN) if name in rows}
    outputs = module.forward_train(inputs)
    if Columns.VF_PREDS not in outputs:
        raise ModuleOutputError(type(module).__name__, f"ppo_loss() needs {Columns.VF_PREDS!r} among the outputs, got "
                                f"{list(outputs)}")  # fmt: skip
    actions, logp_before, advantages, targets = (rows[name] for name in NEEDED)
    distribution = module.get_train_action_dist_cls().from_logits(outputs[Columns.ACTION_DIST_INPUTS])
    log_ratio = distribution.logp(actions) - logp_before
    value_error, entropy = outputs[Columns.VF_PREDS] - targets, distribution.entropy()
    mask = rows.get(Columns.LOSS_MASK)
    if mask is not None:  # before anything is done with them: what padding holds may be NaN
        out = ~mask
        log_ratio, advantages = log_ratio.masked_fill(out, 0.0), advantages.masked_fill(out, 0.0)
        value_error, entropy = value_error.masked_fill(out, 0.0), entropy.masked_fill(out, 0.0)
    mean = _mean_of(mask)
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    squared_error = value_error.square()
    if vf_clip is not None:
        squared_error = squared_error.clamp(max=vf_clip)
    loss = mean(vf_coeff * squared_error - surrogate - entropy_coeff * entropy)
    if stats is not None:
        with torch.no_grad():
            stats["policy_loss"], stats["vf_loss"] = -mean(surrogate), mean(squared_error)
            stats["entropy"], stats["kl"] = mean(entropy), mean(ratio - 1 - log_ratio)
            stats["clip_fraction"] = mean(((ratio - 1).abs() > clip).float())
    return loss


def _mean_of(mask: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The mean over the rows that count, where the others are 0; 0 if none counts."""
    if mask is None:
        return torch.mean
    total = mask.sum().clamp(min=1)
    return lambda values: values.sum() / total
