"""The loss of Proximal Policy Optimization (PPO)."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fastmarl.core.errors import BatchError, ConfigError, ModuleOutputError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.distributions.base import Distribution
from fastmarl.core.spaces.columns import Columns, Recorded, recorded_name
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.core.spaces.values import choice_ranges
from fastmarl.learning.one_module import one_module

NEEDED = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def ppo_loss(
    module: torch.nn.Module,
    rows: Mapping[str, Any],
    *,
    clip: float = 0.2,
    vf_coeff: float = 0.5,
    vf_clip: float | None = None,
    entropy_coeff: float = 0.01,
    kl_coeff: float = 0.0,
    stats: dict[str, Tensor] | None = None,
) -> Tensor:
    """Compute the PPO loss of a minibatch: clipped surrogate, value error and entropy bonus.

    See Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equations 7 and 9.

    Args:
        module: Module that sampled the rows, possibly with older weights: an RLModule, or any torch module accepted by
            a runner.
        rows: Tensors [n, ...], or [B, T, ...] for recurrent modules: "obs", "actions", "action_logp", "advantages" and
            "value_targets"; optionally "action_mask", "state_in" [B, ...], and "loss_mask" bool [n] or [B, T]; all rows
            count by default.
        clip: Maximum distance of the probability ratio from 1.
        vf_coeff: Weight of the value error (mean of squares). With 0, for example for a critic in a separate network,
            neither values nor "value_targets" are needed.
        vf_clip: Upper bound on the squared value error per row; None for no bound.
        entropy_coeff: Weight of the entropy.
        kl_coeff: Weight of the KL divergence from the sampling policy to the policy of the module, as in RLlib. If it
            is not 0, the column "action_dist_inputs" [n, k] of the sampling policy is needed.
        stats: Dict to which statistics are written, without gradients: "policy_loss", "entropy", "kl" (the estimate
            mean(r - 1 - log r) of Schulman 2020, "Approximating KL Divergence") and "clip_fraction"; unless `vf_coeff`
            is 0, "vf_loss" and "vf_explained_var" (1 - variance of the value errors / variance of the targets, at least
            -1); and unless `kl_coeff` is 0, "mean_kl_loss", the mean divergence.

    Returns:
        The loss, a scalar tensor.

    Raises:
        BatchError: If a column is missing or does not have one number per row, the shape of an action differs from the
            action space of the module, or "loss_mask" is not bool.
        ConfigError: If `clip`, `vf_clip` or a coefficient is NaN or out of range.
        ModuleOutputError: If the module does not output one value per row although `vf_coeff` is not 0.
    """
    check_coefficients(clip=clip, vf_coeff=vf_coeff, vf_clip=vf_clip, entropy_coeff=entropy_coeff, kl_coeff=kl_coeff)
    module, needed = one_module(module), needed_columns(rows, vf_coeff, kl_coeff)
    outputs = module.forward_train(module_inputs(rows))
    logits = outputs[Columns.ACTION_DIST_INPUTS]
    distribution = module.get_train_action_dist_cls().from_logits(logits)
    check_actions(module, rows[Columns.ACTIONS], logits.shape[:-1])
    logp = distribution.logp(rows[Columns.ACTIONS])
    check_rows(rows, needed, logp.shape)
    log_ratio = logp - rows[Columns.ACTION_LOGP]
    divergence = _divergence(module, rows, distribution, outputs) if kl_coeff else torch.zeros_like(log_ratio)
    advantages, entropy = rows[Columns.ADVANTAGES], distribution.entropy()
    mask = rows.get(Columns.LOSS_MASK)
    if mask is not None:  # first, because padding may be NaN
        columns = log_ratio, advantages, entropy, divergence
        log_ratio, advantages, entropy, divergence = (column.masked_fill(~mask, 0.0) for column in columns)
    mean = _mean_of(mask, logp.numel())
    ratio = log_ratio.exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    gain = surrogate + entropy_coeff * entropy - kl_coeff * divergence
    error = _value_error(module, outputs, rows) if vf_coeff else None
    squared_error = None if error is None else error.square().clamp(max=math.inf if vf_clip is None else vf_clip)
    if stats is not None:
        with torch.no_grad():
            stats["policy_loss"] = -mean(surrogate)
            if error is not None and squared_error is not None:
                stats["vf_loss"] = mean(squared_error)
                targets = rows[Columns.VALUE_TARGETS].to(error.dtype)
                of_targets = _variance(targets, mask).clamp(min=torch.finfo(targets.dtype).tiny)
                stats["vf_explained_var"] = (1 - _variance(error, mask) / of_targets).clamp(min=-1)
            stats["entropy"], stats["kl"] = mean(entropy), mean(ratio - 1 - log_ratio)
            stats["clip_fraction"] = mean(((ratio - 1).abs() > clip).float())
            if kl_coeff:
                stats["mean_kl_loss"] = mean(divergence)
    return mean(-gain if squared_error is None else vf_coeff * squared_error - gain)


def check_coefficients(**given: Any) -> None:
    """Raise ConfigError if an option of `ppo_loss()` or PPOLearner is NaN or out of range."""
    for name, value in given.items():
        least = -math.inf if name == "entropy_coeff" else 0
        is_limit = name in ("clip", "vf_clip", "max_grad_norm")  # may be infinite
        if value is not None and not (least <= value and (is_limit or abs(value) < math.inf)):
            kind = ">= 0" if is_limit else "a finite number" if least else "a finite number >= 0"
            raise ConfigError(f"{name} must be {kind}, got {value}")


def module_inputs(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return those columns of `rows` that are inputs of the module."""
    names: tuple[Any, ...] = (Columns.OBS, recorded_name(Recorded.ACTION_MASK, rows), Columns.STATE_IN)
    return {name: rows[name] for name in names if name in rows}


def _divergence(
    module: RLModule, rows: Mapping[str, Any], distribution: Distribution, outputs: Mapping[str, Any]
) -> Tensor:
    """Return KL(sampling policy || current policy) of each row."""
    former, shape = rows[Columns.ACTION_DIST_INPUTS], outputs[Columns.ACTION_DIST_INPUTS].shape
    if former.shape != shape:
        raise BatchError(f"ppo_loss() needs {Columns.ACTION_DIST_INPUTS!r} of shape {tuple(shape)}, got shape "
                         f"{tuple(former.shape)}")  # fmt: skip
    found: Tensor = module.get_train_action_dist_cls().from_logits(former).kl(distribution)
    return found


def _value_error(module: RLModule, outputs: Mapping[str, Any], rows: Mapping[str, Any]) -> Tensor:
    """Return the value error of each row, with 0 for rows that do not count."""
    if Columns.VF_PREDS not in outputs:
        raise ModuleOutputError(type(module._net()).__name__, f"ppo_loss() needs {Columns.VF_PREDS!r} among the "
                                f"outputs, got {list(outputs)}")  # fmt: skip
    values, targets = outputs[Columns.VF_PREDS], rows[Columns.VALUE_TARGETS]
    if values.shape != targets.shape:
        raise ModuleOutputError(type(module._net()).__name__, f"ppo_loss() needs {Columns.VF_PREDS!r} of shape "
                                f"{tuple(targets.shape)}, one for each row, got {tuple(values.shape)}")  # fmt: skip
    error = values - targets
    return error.masked_fill(~rows[Columns.LOSS_MASK], 0.0) if Columns.LOSS_MASK in rows else error


def _variance(values: Tensor, mask: Tensor | None) -> Tensor:
    counted = values if mask is None else values[mask]
    n = max(1, counted.numel())
    return (counted - counted.sum() / n).square().sum() / n


def needed_columns(rows: Mapping[str, Any], vf_coeff: float, kl_coeff: float = 0.0) -> tuple[str, ...]:
    """Return the names of the columns required by the loss, except the logits.

    Raises:
        BatchError: If a column is missing.
    """
    needed = (*NEEDED, Columns.VALUE_TARGETS) if vf_coeff else NEEDED
    others = (Columns.ACTION_DIST_INPUTS,) if kl_coeff else ()
    if missing := [name for name in (*needed, *others) if name not in rows]:
        raise BatchError(f"ppo_loss() needs the columns {missing}, got only {list(rows)}")
    return needed


def used_columns(rows: Mapping[str, Any], vf_coeff: float, kl_coeff: float = 0.0) -> set[Any]:
    """Return the names of all columns used by the loss and the module; raise BatchError as in `needed_columns()`."""
    names = {*module_inputs(rows), *needed_columns(rows, vf_coeff, kl_coeff), Columns.LOSS_MASK}
    return rows.keys() & (names | {Columns.ACTION_DIST_INPUTS} if kl_coeff else names)


def check_rows(rows: Mapping[str, Any], needed: Sequence[str], shape: torch.Size) -> None:
    """Raise BatchError unless the loss columns have one number per row; other shapes would be broadcast."""
    for name in (*needed[2:], Columns.LOSS_MASK):
        column = rows.get(name)
        if column is not None and column.shape != shape:
            raise BatchError(f"ppo_loss() needs one number for each row in {name!r}, a tensor of shape {tuple(shape)}, "
                             f"got shape {tuple(column.shape)}")  # fmt: skip
    mask = rows.get(Columns.LOSS_MASK)
    if mask is not None and mask.dtype != torch.bool:
        raise BatchError(f"ppo_loss() needs a bool {Columns.LOSS_MASK!r}, got {mask.dtype}; convert it with bool()")


def check_actions(module: RLModule, actions: Any, shape: torch.Size) -> None:
    """Raise BatchError unless each row has an action from the action space; other shapes would be broadcast."""
    if module.action_space is None:
        return
    given = dict(flatten_struct(actions))
    for leaf in RowLayout(module.action_space).leaves:
        column, expected = given.get(leaf.path), (*shape, *leaf.shape)
        if not isinstance(column, Tensor) or column.shape != expected:
            name = "".join(f"[{key!r}]" for key in (Columns.ACTIONS, *leaf.path))
            got = f"shape {tuple(column.shape)}" if isinstance(column, Tensor) else type(column).__name__
            raise BatchError(f"ppo_loss() needs a tensor of shape {expected} in rows{name}, got {got}")


def check_choices(module: RLModule, rows: Mapping[str, Any]) -> None:
    """Raise BatchError if a discrete action is out of range, which some distributions do not detect."""
    if module.action_space is None:
        return
    check_actions(module, rows[Columns.ACTIONS], rows[Columns.ACTION_LOGP].shape)
    given = dict(flatten_struct(rows[Columns.ACTIONS]))
    for leaf, space in zip(RowLayout(module.action_space).leaves, leaf_spaces(module.action_space), strict=True):
        if (ranges := choice_ranges(space)) is None:
            continue
        sizes = (ranges[1] - ranges[0] + 1).reshape(leaf.shape)  # recorded actions start at 0
        column = given[leaf.path]
        if column.is_complex():
            raise BatchError(f"expected integer actions, got {column.dtype}")
        if column.dtype in UNSIGNED:  # torch cannot compare them
            column = column.long()
        are_integers = column == column.round() if column.is_floating_point() else True
        if not ((column >= 0) & (column < torch.from_numpy(sizes).to(column.device)) & are_integers).all():
            raise BatchError(f"expected actions >= 0 and < {sizes.tolist()}, got {column.min().item():g} to "
                             f"{column.max().item():g}")  # fmt: skip


def _mean_of(mask: Tensor | None, n: int) -> Callable[[Tensor], Tensor]:
    """Return a function that averages n values over the rows that count; values of other rows must be zeros.

    The mean is 0 if no row counts.
    """
    if mask is None:
        return torch.mean if n else torch.sum
    total = mask.sum().clamp(min=1)
    return lambda values: values.sum() / total
