"""Action masks on a module's logits: one rule for acting, learning, exported graphs and legacy policies."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastmarl.core.columns import Columns, Recorded
from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.masks import choices_of, key_among
from fastmarl.core.spaces.structs import flatten_struct

LOGITS = Columns.ACTION_DIST_INPUTS
LEAST = torch.finfo(torch.float32).min
COLUMNS = (Recorded.ACTION_MASK, Columns.ACTION_MASK)  # what the module itself puts out under this name is no mask


def masked(logits: Tensor, mask: Any) -> Tensor:
    """Logits [..., choices] where the mask is not 0; elsewhere the least finite number, also as float32.

    Args:
        mask: a tensor [..., choices], or [..., *shape] of a shape with as many numbers; or nested tensors, whose
            numbers are side by side.

    Raises:
        BatchError: the mask has another number of rows or choices.
    """
    row = mask if isinstance(mask, Tensor) and mask.shape == logits.shape else _in_a_row(mask, logits)
    return logits.masked_fill(row == 0, max(torch.finfo(logits.dtype).min, LEAST))


def masked_outputs(module: Any, batch: Mapping[Any, Any], outputs: Any) -> Any:
    """An RLModule's outputs for a batch, with the batch's action mask applied to the logits.

    The mask is the column that the runner has recorded, or else the one in the observations. Nothing changes without a
    mask, or if the module has applied it itself.

    Raises:
        BatchError: the observations lack the mask that their space has, or the mask does not fit the logits.
    """
    if module.masks_actions or not isinstance(outputs, Mapping) or LOGITS not in outputs:
        return outputs
    mask = _mask_of(module, batch, outputs)
    return outputs if mask is None else {**outputs, LOGITS: masked(outputs[LOGITS], mask)}


def _mask_of(module: Any, batch: Mapping[Any, Any], outputs: Mapping[str, Any]) -> Any:
    column = next((name for name in COLUMNS if name in batch and name not in outputs), None)
    key = key_among(module.observation_space)
    if (column is None and key is None) or not choices_of(module.action_space):
        return None
    if column is not None:
        return batch[column]
    obs = batch[Columns.OBS]
    if not isinstance(obs, Mapping) or key not in obs:
        got = f"the keys {list(obs)}" if isinstance(obs, Mapping) else type(obs).__name__
        raise BatchError(f"{type(module._net()).__name__} acts under the mask obs[{key!r}], so it must train with it; "
                         f"expected 'obs' nested as {module.observation_space}, got {got}")  # fmt: skip
    return obs[key]


def _in_a_row(mask: Any, logits: Tensor) -> Tensor:
    """A mask of any form as one of the logits' shape."""
    leaves = [leaf for _, leaf in flatten_struct(mask)]
    n_axes = logits.dim() - 1
    fits = all(leaf.shape[:n_axes] == logits.shape[:-1] for leaf in leaves)
    numbers = sum(leaf.shape[n_axes:].numel() for leaf in leaves)
    if not fits or numbers != logits.shape[-1]:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise BatchError(f"expected an action mask with a number for each of the {logits.shape[-1]} logits of each "
                         f"row, {LOGITS!r} being of shape {tuple(logits.shape)}, got shape {shapes}")  # fmt: skip
    return torch.cat([leaf.reshape(*logits.shape[:-1], leaf.shape[n_axes:].numel()) for leaf in leaves], -1)
