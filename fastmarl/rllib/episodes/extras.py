"""Extra model outputs that are not the same in all steps: what RLlib then can't store is completed here.

Steps differ where a running episode is sampled now by the module and now at random (random steps have no outputs), or
now with and now without exploration (RLlib's log-probability of a deterministic continuous action has a number for each
component of the action).
"""

import copy
from typing import Any

import numpy as np
import tree  # type: ignore[import-untyped]
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

# Types of outputs that have no axes, or none that are compared.
WITHOUT_AXES = frozenset((int, float, bool, np.bool_, np.float32, np.float64, np.int32, np.int64, dict, tuple, list))


def completed(agent_episode: SingleAgentEpisode, extras: dict[str, Any] | None) -> dict[str, Any] | None:
    """An agent's outputs of a step with the same keys and ranks as those of `agent_episode`; may complete these, too.

    `extras` is None or empty for a random action.
    """
    columns = agent_episode.extra_model_outputs
    if not extras and not columns:
        return extras
    extras = dict(extras or {})
    if _is_alike(columns, extras):  # as in nearly all steps
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
    """Whether these outputs can be appended to these columns as they are. It may say no where they could."""
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
    """`other`, or a copy whose columns go with those of `agent_episode`, to be appended; may complete that, too."""
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
    """What a step without this output has: NaN or 0; for a recurrent state the one before, as no module changed it."""
    return like if key == Columns.STATE_OUT else tree.map_structure(blank, like)


def blank_column(key: str, like: Any, agent_episode: SingleAgentEpisode) -> InfiniteLookbackBuffer:
    """A column of stand-ins for steps that came before the first output; recurrent states began with zeros."""
    n = agent_episode.actions.len_incl_lookback()
    item = tree.map_structure(np.zeros_like if key == Columns.STATE_OUT else blank, like)
    data: Any = [item] * n
    if agent_episode.is_numpy:
        data = tree.map_structure(lambda leaf: np.repeat(np.asarray(leaf)[None], n, axis=0), item)
    column = InfiniteLookbackBuffer(data)
    column.lookback = agent_episode.actions.lookback
    return column


def same_rank(column: InfiniteLookbackBuffer, value: Any) -> Any:
    """`value` with as many axes as the column's items have, or the column changed to the fewer axes of `value`."""
    if not column.len_incl_lookback():
        return value
    rank, column_rank = _rank(value), _rank(column.get(-1))
    if rank is None or column_rank is None:
        return value
    _lower(column, rank)
    return summed(value, column_rank) if rank > column_rank else value


def _lower(column: InfiniteLookbackBuffer, rank: int | None) -> None:
    """Sum up the last axes of a column's items, down to `rank` axes."""
    column_rank = _rank(column.get(-1))
    if rank is None or column_rank is None or column_rank <= rank:
        return
    if column.finalized:
        column.data = summed(column.data, rank + 1)
    else:
        column.data = [summed(item, rank) for item in column.data]


def summed(value: Any, rank: int) -> Any:
    """`value` in its own dtype, summed up to `rank` axes: log-probabilities of parts make that of the whole."""
    array = np.asarray(value)
    return array.sum(axis=tuple(range(rank, array.ndim)), dtype=array.dtype)


def _rank(value: Any) -> int | None:
    """Axes of an array or number; None for what has parts."""
    return None if isinstance(value, dict | tuple | list) else np.ndim(value)


def blank(value: Any) -> Any:
    """NaN for floats and 0 for others, with the dtype and shape of `value`."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        return value
    filled = np.full(array.shape, np.nan if array.dtype.kind in "fc" else 0, array.dtype)
    return filled if isinstance(value, np.ndarray) else filled[()]
