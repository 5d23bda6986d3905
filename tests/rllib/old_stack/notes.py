"""Notes that envs, policies, mapping functions and callbacks of the old stack write on the tape."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rllib.differential import tape

ID_COLUMNS = ("eps_id", "unroll_id")
"""Columns of random or counted ids. What they are is by chance; which rows have the same one is not."""


PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True)
class Id:
    """An id of this kind. Two runs agree on it if it pairs up with the other run's, see `compare.Comparison`."""

    kind: str
    value: int

    def __str__(self) -> str:
        return str(self.value)


def freeze(value: Any) -> Any:
    """As `tape.freeze()`, for what RLlib's old stack hands around in addition."""
    kind = type(value)
    if kind in PLAIN:
        return (kind.__name__, repr(value))
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ("objects", value.shape, *map(freeze, value.ravel().tolist()))
        return (kind.__name__, value.dtype.str, value.shape, value.flags.writeable, value.tobytes())
    if isinstance(value, dict):
        return (kind.__name__, *((freeze(key), _column(key, part)) for key, part in value.items()))
    if isinstance(value, (list, tuple)):
        return (kind.__name__, *map(freeze, value))
    if isinstance(value, (set, frozenset)):
        return (kind.__name__, *sorted(map(repr, value)))
    if isinstance(value, torch.Tensor):
        return ("Tensor", freeze(value.detach().cpu().numpy()))
    if isinstance(value, Id):
        return value
    if isinstance(value, type):
        return ("class", value.__name__)
    return tape.freeze(value)


def _column(key: Any, values: Any) -> Any:
    if key not in ID_COLUMNS:
        return freeze(values)
    if isinstance(values, (np.ndarray, torch.Tensor)):
        values = np.asarray(values)
        found = values.ravel().tolist()
        found = found[:1] if len({*found}) == 1 else found
        return ("ids", values.dtype.str, values.shape, *(Id(key, int(one)) for one in found))
    if isinstance(values, list):
        return ("ids", *(_column(key, part) for part in values))
    return Id(key, values) if isinstance(values, int) else freeze(values)


def outline(episode: Any) -> tuple:
    """All that an EpisodeV2 shows without its collectors; or an exception in its place."""
    if isinstance(episode, Exception):
        return (type(episode).__name__, str(episode))
    agents = episode.get_agents()
    return (
        Id("eps_id", episode.episode_id),
        episode.env_id,
        episode.length,
        (episode.active_env_steps, episode.total_env_steps, episode.active_agent_steps, episode.total_agent_steps),
        freeze(episode.total_reward),
        freeze(episode.agent_rewards),
        freeze(episode._agent_reward_history),
        freeze([episode.user_data, episode.hist_data, episode.custom_metrics, episode.media]),
        tuple(map(repr, agents)),
        tuple(_about(episode, agent) for agent in agents),
        freeze(episode._last_infos),
        freeze([episode._agent_to_policy, episode._agent_to_index, episode._next_agent_index]),
        freeze([episode._has_init_obs, episode._last_terminateds, episode._last_truncateds]),
    )


def _about(episode: Any, agent: Any) -> tuple:
    flags = (episode.has_init_obs(agent), episode.is_done(agent), episode.is_terminated(agent))
    policy = episode._agent_to_policy.get(agent)
    return (*map(freeze, (*flags, episode.is_truncated(agent))), policy, freeze(episode.last_info_for(agent)))


def collected(episode: Any) -> tuple:
    """Return the data in the collectors of an episode's agents, which are private to RLlib, but used by users."""
    return tuple(
        (repr(agent), collector.agent_steps, collector.shift_before, freeze(collector.buffers))
        for agent, collector in episode._agent_collectors.items()
    )
