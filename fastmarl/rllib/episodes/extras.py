"""Completes extra model outputs whose keys or ranks differ between steps, which RLlib cannot store.

They differ if an episode has both actions of the module and random actions, which have no outputs, or both steps with
and without exploration: in RLlib, the log-probability of a deterministic continuous action has one number per action
component.
"""

import copy
from typing import Any

import numpy as np
import tree  # type: ignore[import-untyped]
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

# Types of outputs without axes, or whose axes are not compared.
WITHOUT_AXES = frozenset((int, float, bool, np.bool_, np.float32, np.float64, np.int32, np.int64, dict, tuple, list))


def completed(agent_episode: SingleAgentEpisode, extras: dict[str, Any] | None) -> dict[str, Any] | None:
    """Complete the outputs of a step to match the keys and ranks of `agent_episode`, which may be completed as well.

    `extras` is None or empty for a random action.
    """
    columns = agent_episode.extra_model_outputs
    if not extras and not columns:
        return extras
    extras = dict(extras or {})
    if _is_alike(columns, extras):  # true of nearly all steps
        return extras
    for key, column in columns.items():
        if key not in extras and column.len_incl_lookback():
            extras[key] = stand_in(key, column.get(-1))
    for key, value in extras.items():
        if key not in columns and agent_episode.actions.len_incl_lookback():
            columns[key] = blank_column(key, value, agent_episode)
        if key in columns:
            extras[key] = same_rank(columns[key], value)
    return extras


def _is_alike(columns: dict[str, InfiniteLookbackBuffer], extras: dict[str, Any]) -> bool:
    """Return True only if these outputs can be appended to these columns unchanged; may err on the side of False."""
    if len(columns) != len(extras):
        return False
    for key, value in extras.items():
        items = columns[key].data if key in columns else None
        if type(items) is not list or not items:
            return False
        item, kind = items[-1], type(value)
        if kind is not type(item) or (kind is np.ndarray and value.ndim != item.ndim):
            return False
        if kind is not np.ndarray and kind not in WITHOUT_AXES:
            return False
    return True


def uniform(agent_episode: SingleAgentEpisode, other: SingleAgentEpisode) -> SingleAgentEpisode:
    """Return `other`, or a copy with columns that can be appended to `agent_episode`; may also complete the latter."""
    ours, theirs = agent_episode.extra_model_outputs, dict(other.extra_model_outputs)
    for key, column in theirs.items():
        if key not in ours and column.len_incl_lookback():
            ours[key] = blank_column(key, column.get(-1), agent_episode)
    for key, column in ours.items():
        if not len(other) or not column.len_incl_lookback():
            continue
        if key not in theirs:
            theirs[key] = blank_column(key, column.get(-1), other)
        elif _rank(theirs[key].get(-1)) != _rank(column.get(-1)):
            theirs[key] = copy.copy(theirs[key])
            same_rank(theirs[key], same_rank(column, theirs[key].get(-1)))
            _lower(column, _rank(theirs[key].get(-1)))
    if all(column is other.extra_model_outputs.get(key) for key, column in theirs.items()):
        return other
    other = copy.copy(other)
    other.extra_model_outputs = theirs
    return other


def stand_in(key: str, like: Any) -> Any:
    """Return a value for a step without this output: NaN or 0, or the last recurrent state, which has not changed."""
    return like if key == Columns.STATE_OUT else tree.map_structure(blank, like)


def blank_column(key: str, like: Any, agent_episode: SingleAgentEpisode) -> InfiniteLookbackBuffer:
    """Return a column of stand-ins for the steps before the first output; recurrent states are zeros."""
    n = agent_episode.actions.len_incl_lookback()
    item = tree.map_structure(np.zeros_like if key == Columns.STATE_OUT else blank, like)
    data: Any = [item] * n
    if agent_episode.is_numpy:
        data = tree.map_structure(lambda leaf: np.repeat(np.asarray(leaf)[None], n, axis=0), item)
    column = InfiniteLookbackBuffer(data)
    column.lookback = agent_episode.actions.lookback
    return column


def same_rank(column: InfiniteLookbackBuffer, value: Any) -> Any:
    """Return `value` with the rank of the column items, or reduce the items if `value` has a lower rank."""
    if not column.len_incl_lookback():
        return value
    rank, column_rank = _rank(value), _rank(column.get(-1))
    if rank is None or column_rank is None:
        return value
    _lower(column, rank)
    return summed(value, column_rank) if rank > column_rank else value


def _lower(column: InfiniteLookbackBuffer, rank: int | None) -> None:
    """Sum over the last axes of column items, so that `rank` axes remain."""
    column_rank = _rank(column.get(-1))
    if rank is None or column_rank is None or column_rank <= rank:
        return
    if column.finalized:
        column.data = summed(column.data, rank + 1)
    else:
        column.data = [summed(item, rank) for item in column.data]


def summed(value: Any, rank: int) -> Any:
    """Sum `value` down to `rank` axes in its dtype, because log-probabilities of action components add up."""
    array = np.asarray(value)
    return array.sum(axis=tuple(range(rank, array.ndim)), dtype=array.dtype)


def _rank(value: Any) -> int | None:
    """Return the number of axes of an array or number, or None for a dict, tuple or list."""
    return None if isinstance(value, dict | tuple | list) else np.ndim(value)


def blank(value: Any) -> Any:
    """Return NaN for floats and 0 for other numbers, in the dtype and shape of `value`."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        return value
    filled = np.full(array.shape, np.nan if array.dtype.kind in "fc" else 0, array.dtype)
    return filled if isinstance(value, np.ndarray) else filled[()]
