"""Episodes to RLlib's classes and back, where Ray is installed."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from importlib import import_module
from typing import Any

import numpy as np

from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.errors import EpisodeError
from fastmarl.spaces import map_struct

SKIPPED = "S"  # RLlib's MultiAgentEpisode.SKIP_ENV_TS_TAG


def to_rllib(episode: MultiAgentEpisode) -> Any:
    """The same chunk as RLlib's `MultiAgentEpisode`, in arrays (`is_numpy`), which are copies.

    What RLlib's class has no place for is left out: env states, common infos, the reset seed, and agents that have no
    transition in this chunk; and what waiting agents were paid, as RLlib shows that beside the actions, which here are
    in the chunk in which they are answered.

    Raises:
        ImportError: Ray is not installed.
    """
    rllib = _rllib("multi_agent_episode").MultiAgentEpisode
    buffer = _rllib("utils.infinite_lookback_buffer").InfiniteLookbackBuffer
    parts = episode.agent_episodes
    other = rllib(
        id_=episode.id_,
        observation_space=dict(episode.observation_space),
        action_space=dict(episode.action_space),
        env_t_started=episode.env_t_started,
        agent_t_started={agent: part.t_started for agent, part in parts.items()},
        len_lookback_buffer=episode.lookback,
        agent_module_ids={agent: episode.module_for(agent) for agent in parts},
        agent_to_module_mapping_fn=episode.agent_to_module_mapping_fn,
    )
    other.env_t = episode.env_t
    other.is_terminated, other.is_truncated = episode.is_terminated, episode.is_truncated
    other._custom_data = copy.deepcopy(episode.custom_data)
    other._start_time, other._last_step_time = 0.0, episode.get_duration_s()
    for agent, part in parts.items():
        other.agent_episodes[agent] = _part_to_rllib(part, buffer)
        first = min(episode.env_t_started - episode.lookback, int(part.env_ts()[part.lookback]))
        entries = _entries(part, first, episode.env_t)
        other.env_t_to_agent_t[agent] = buffer(entries, lookback=episode.env_t_started - first)
    other.validate()
    return other


def from_rllib(episode: Any) -> MultiAgentEpisode:
    """A chunk in RLlib's `MultiAgentEpisode` as one of ours. It stays as it is; arrays that it has are shared.

    Agents without a transition in the chunk are left out, and actions that are hanging there; rewards are kept. The
    env steps of observations that lie before RLlib's lookback are not known there; they count as one each.

    Raises:
        EpisodeError: agents' columns don't fit each other.
    """
    if episode.agent_episodes and not episode.is_numpy:
        episode = copy.deepcopy(episode).to_numpy()
    parts = [_part_from_rllib(episode, agent, part) for agent, part in episode.agent_episodes.items() if len(part)]
    waiting = {agent: entries.data[-1] == SKIPPED for agent, entries in episode.env_t_to_agent_t.items()}
    state = {
        "id_": episode.id_,
        "agent_episodes": parts,
        "agent_ids": [agent for agent, part in episode.agent_episodes.items() if len(part) or not part.is_done],
        "env_t_started": episode.env_t_started,
        "env_t": episode.env_t,
        "lookback": episode._len_lookback_buffers,
        "is_terminated": episode.is_terminated,
        "is_truncated": episode.is_truncated,
        "common_infos": {},
        "hanging_rewards": {
            agent: float(paid) for agent, paid in episode._hanging_rewards_end.items() if waiting.get(agent)
        },
        "custom_data": copy.deepcopy(episode.custom_data),
        "duration_s": 0.0 if episode._start_time is None else episode.get_duration_s(),
        "respawned": [],
        "reset_seed": None,
        "env_states": None,
    }
    return MultiAgentEpisode.from_state(
        state,
        observation_space=episode.observation_space,
        action_space=episode.action_space,
        agent_to_module_mapping_fn=episode.agent_to_module_mapping_fn,
    )


def _rllib(module: str) -> Any:
    try:
        return import_module(f"ray.rllib.env.{module}")
    except ModuleNotFoundError as error:
        raise ImportError(f"this needs RLlib, pip install 'ray[rllib]': {error}") from error


def _part_to_rllib(part: Any, buffer: Any) -> Any:
    state = part.get_state()
    n = part.lookback

    def column(values: Any, space: Any = None) -> Any:
        made = buffer(map_struct(np.array, values), space=space)
        made.lookback = n  # not as an argument, which is cut to the length of a dict
        return made

    other = _rllib("single_agent_episode").SingleAgentEpisode(
        id_=part.id_,
        agent_id=part.agent_id,
        module_id=part.module_id,
        multi_agent_episode_id=part.multi_agent_episode_id,
        observation_space=part.observation_space,
        action_space=part.action_space,
        observations=column(state["observations"], part.observation_space),
        infos=buffer(copy.deepcopy(state["infos"]), lookback=n),
        actions=column(state["actions"], part.action_space),
        rewards=column(state["rewards"]),
        extra_model_outputs={key: column(values) for key, values in state["extra_model_outputs"].items()},
        terminated=part.is_terminated,
        truncated=part.is_truncated,
        t_started=part.t_started,
        len_lookback_buffer=n,
    )
    other.custom_data.update(copy.deepcopy(part.custom_data))
    return other


def _entries(part: Any, first: int, last: int) -> list[int | str]:
    """The agent's own step at each env step from `first` to `last`."""
    step_of = {t: part.t_started - part.lookback + i for i, t in enumerate(part.env_ts().tolist())}
    return [step_of.get(t, SKIPPED) for t in range(first, last + 1)]


def _part_from_rllib(episode: Any, agent: Hashable, part: Any) -> dict[str, Any]:
    """The state of our part."""
    return {
        "agent_id": agent,
        "module_id": part.module_id,
        "id_": part.id_,
        "multi_agent_episode_id": episode.id_,
        "lookback": part.observations.lookback,
        "t_started": part.t_started,
        "is_terminated": part.is_terminated,
        "is_truncated": part.is_truncated,
        "observations": part.observations.data,
        "env_ts": _env_ts(episode, agent, part),
        "infos": list(part.infos.data),
        "actions": part.actions.data,
        "rewards": np.asarray(part.rewards.data, np.float64),
        "extra_model_outputs": {key: column.data for key, column in part.extra_model_outputs.items()},
        "custom_data": copy.deepcopy(part.custom_data),
    }


def _env_ts(episode: Any, agent: Hashable, part: Any) -> np.ndarray:
    """int64, the env step of each observation, lookback included."""
    buffer = episode.env_t_to_agent_t[agent]
    entries = list(buffer.data)
    superfluous = len(entries) - (len(episode) + buffer.lookback + 1)
    if superfluous > 0 and all(entry == SKIPPED for entry in entries[:superfluous]):
        del entries[:superfluous]  # RLlib counts agents that have joined later from the episode's begin
    elif superfluous > 0:  # and has two entries for the step in which an agent ended unobserved
        del entries[max(i for i, entry in enumerate(entries) if entry != SKIPPED) - 1]
    begin = episode.env_t_started - buffer.lookback
    first = part.t_started - part.observations.lookback
    of_step = {entry - first: begin + i for i, entry in enumerate(entries) if entry != SKIPPED}
    n = part.infos.len_incl_lookback()
    known = [i for i in range(n) if i in of_step]
    if not known or known != list(range(known[0], n)):
        raise EpisodeError(f"agent {agent!r}: RLlib's episode does not tell the env steps of its {n} observations")
    before = [of_step[known[0]] - i for i in range(known[0], 0, -1)]
    return np.array([*before, *(of_step[i] for i in known)], np.int64)
