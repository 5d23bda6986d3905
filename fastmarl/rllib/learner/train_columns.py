"""Checks the columns of a module's train batch that PPO's loss reads."""

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from fastmarl.rllib.learner.module_parts import PPOModuleParts

COLUMNS = (
    *(Columns.OBS, Columns.ACTIONS, Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP),
    *(Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS),
)


def are_known(batch: dict[str, Tensor], parts: PPOModuleParts) -> bool:
    """Return true if a train batch has `COLUMNS`, and maybe a loss mask, in the form that RLlib's connectors create."""
    if not all(name in batch for name in COLUMNS):
        return False
    columns = [batch[name] for name in COLUMNS]
    n, actions = len(columns[0]), batch[Columns.ACTIONS]
    mask = batch.get(Columns.LOSS_MASK, torch.ones(n, dtype=torch.bool, device="cpu"))
    action_shape = () if parts.is_discrete else (parts.n_logits // 2,)
    shapes: tuple[tuple[int, ...], ...] = (parts.n_obs,), action_shape, (parts.n_logits,), (), (), ()
    if any(column.shape != (n, *shape) for column, shape in zip(columns, shapes, strict=True)):
        return False
    floats = [column for column in columns if column is not actions or not parts.is_discrete]
    if not all(column.dtype == torch.float32 and column.is_cpu for column in floats):
        return False
    if mask.dtype != torch.bool or mask.shape != (n,) or not mask.is_cpu:
        return False
    return not parts.is_discrete or _are_indices(actions, parts)


def _are_indices(actions: Tensor, parts: PPOModuleParts) -> bool:
    """Return true if discrete actions are among the module's choices, and exact in float32."""
    if actions.dtype not in (torch.int32, torch.int64) or not actions.is_cpu:
        return False
    return 0 <= int(actions.min()) <= int(actions.max()) < min(parts.n_logits, 2**24)
