"""Masking of logits: the same rules for acting, learning, exported graphs and legacy policies."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.columns import Columns, Recorded
from fastmarl.core.spaces.masks import choices_of, key_among
from fastmarl.core.spaces.structs import flatten_struct

LOGITS = Columns.ACTION_DIST_INPUTS
LEAST = torch.finfo(torch.float32).min
COLUMNS = (Recorded.ACTION_MASK, Columns.ACTION_MASK)  # unless a module output has the same name


def masked(logits: Tensor, mask: Any) -> Tensor:
    """Return logits [..., choices] with the lowest number finite in their dtype and in float32 where the mask is 0.

    Args:
        mask: A tensor [..., choices], a tensor [..., *shape] with as many elements, or nested tensors to concatenate.

    Raises:
        BatchError: If the mask has the wrong number of rows or choices.
    """
    return logits.masked_fill(in_a_row(mask, logits.shape) == 0, max(torch.finfo(logits.dtype).min, LEAST))


def masked_outputs(module: Any, batch: Mapping[Any, Any], outputs: Any) -> Any:
    """Apply the action mask of a batch to the logits in the outputs of an RLModule.

    The mask is the column recorded by the runner or, without one, the mask in the observations. Outputs are unchanged
    if there is no mask, or if the module masks actions itself.

    Raises:
        BatchError: If the space of the observations has a mask but they do not, or the mask does not match the logits.
    """
    if module.masks_actions or not isinstance(outputs, Mapping) or LOGITS not in outputs:
        return outputs
    mask = mask_of(module, batch, outputs)
    return outputs if mask is None else {**outputs, LOGITS: masked(outputs[LOGITS], mask)}


def mask_of(module: Any, batch: Mapping[Any, Any], outputs: Collection[str]) -> Any:
    """Return the mask, nested tensors or None, for a module that does not mask actions itself.

    Raises:
        BatchError: If the space of the observations has a mask but they do not.
    """
    column = next((name for name in COLUMNS if name in batch and name not in outputs), None)
    key = key_among(module.observation_space)
    if (column is None and key is None) or not choices_of(module.action_space):
        return None
    if column is not None:
        return batch[column]
    obs = batch[Columns.OBS]
    if not isinstance(obs, Mapping) or key not in obs:
        got = f"the keys {list(obs)}" if isinstance(obs, Mapping) else type(obs).__name__
        raise BatchError(f"{type(module._net()).__name__} acts with the mask obs[{key!r}], so it must also be trained "
                         f"with it; expected 'obs' nested like {module.observation_space}, got {got}")  # fmt: skip
    return obs[key]


def in_a_row(mask: Any, shape: Sequence[int]) -> Tensor:
    """Convert a flat or nested mask to a tensor with the shape of the logits.

    Raises:
        BatchError: If the mask has the wrong number of rows or choices.
    """
    if isinstance(mask, Tensor) and mask.shape == shape:
        return mask
    leaves = [leaf for _, leaf in flatten_struct(mask)]
    *rows, n_logits = shape
    n_axes = len(rows)
    fits = all([*leaf.shape[:n_axes]] == rows for leaf in leaves)
    numbers = sum(leaf.shape[n_axes:].numel() for leaf in leaves)
    if not fits or numbers != n_logits:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise BatchError(f"expected an action mask with {n_logits} entries per row, one per logit ({LOGITS!r} has "
                         f"shape {tuple(shape)}), got shape {shapes}")  # fmt: skip
    return torch.cat([leaf.reshape(*rows, leaf.shape[n_axes:].numel()) for leaf in leaves], -1)
