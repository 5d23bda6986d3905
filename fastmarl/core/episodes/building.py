"""Conversion of user data for episodes that are built or modified by hand."""

from collections.abc import Hashable
from typing import Any

import numpy as np

from fastmarl.core.config import DEFAULT_MODULE_ID
from fastmarl.core.episodes.growing import GrowingColumn, GrowingSource
from fastmarl.core.episodes.sources import ArraySource, Source, array_of, as_rewards, check_held
from fastmarl.core.errors import EpisodeError
from fastmarl.core.spaces.structs import flatten_struct, map_struct


def to_default_module(agent_id: Hashable, episode: Any, **kwargs: Any) -> str:
    """Map every agent to the default module. Pickles of episodes refer to this function by its path."""
    return DEFAULT_MODULE_ID


def given_columns(
    observations: Any, infos: Any, actions: Any, rewards: Any, extras: dict[str, Any], first_env_t: int
) -> Source:
    """Create a source from lists or arrays without checking their lengths."""
    observed = _arrays(observations, "observation")
    n = 0 if observed is None else len(flatten_struct(observed)[0][1])
    if not n:
        return GrowingSource()
    given_infos = getattr(infos, "data", infos)
    no_items = np.zeros(0)
    return ArraySource(
        observations=observed,
        env_ts=np.arange(first_env_t, first_env_t + n),
        actions=no_items if actions is None else _arrays(actions, "action"),
        rewards=as_rewards(no_items if rewards is None else _arrays(rewards, "reward"), "reward"),
        infos=None if given_infos is None or not len(given_infos) else [info or {} for info in given_infos],
        extras={key: _arrays(values, f"extra model output {key!r}") for key, values in extras.items()},
    )


def _arrays(data: Any, what: str) -> Any:
    """Convert a list of items to arrays; arrays, and arrays in a buffer, are returned unchanged."""
    if not isinstance(data, (np.ndarray, dict, tuple)):
        data = getattr(data, "data", data)
    if not isinstance(data, list):
        return data
    column = GrowingColumn()
    for item in data:
        column.append(item, what)
    return column.values()


def fitting(new_data: Any, data: Any, n: int, is_item: bool, who: str) -> Any:
    """Convert n new items to the form of the column `data`: a list, or arrays [n, ...] with the same nesting."""
    if isinstance(data, list) or (isinstance(new_data, list) and not new_data):
        items = [new_data] if is_item else list(new_data)
        _check_number(len(items), n, who)
        return items
    if isinstance(data, np.ndarray) and not isinstance(new_data, np.ndarray) and data.dtype != object:
        new_data = array_of(new_data, who)
    if is_item:
        values = map_struct(lambda leaf: array_of(leaf, who)[None], new_data)
    else:
        values = map_struct(lambda leaf: array_of(leaf, who), _arrays(new_data, who))
    old, new = dict(flatten_struct(data)), dict(flatten_struct(values))
    if old.keys() != new.keys():
        raise EpisodeError(f"{who}: expected items with the entries {list(old)}, got {list(new)}")
    for path, leaf in new.items():
        _check_number(len(leaf), n, who)
        _check_fits(leaf, old[path], who)
    return values


def _check_number(got: int, expected: int, who: str) -> None:
    if got != expected:
        raise IndexError(f"{who}: expected {expected} items in new_data, got {got}")


def _check_fits(new: np.ndarray, old: np.ndarray, who: str) -> None:
    if new.shape[1:] != old.shape[1:]:
        raise EpisodeError(f"{who}: expected items of dtype {old.dtype} and shape {old.shape[1:]}, got {new.dtype} and "
                           f"{new.shape[1:]}")  # fmt: skip
    check_held(old.dtype, new, who)
