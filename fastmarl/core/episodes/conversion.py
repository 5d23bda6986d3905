"""Conversion of episodes to and from RLlib's classes; requires Ray."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import numpy as np

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.readable import check_kind
from fastmarl.core.episodes.sources import as_rewards
from fastmarl.core.errors import EpisodeError
from fastmarl.core.objects.rllib_classes import rllib_class
from fastmarl.core.spaces.structs import map_struct

SKIPPED = "S"  # `MultiAgentEpisode.SKIP_ENV_TS_TAG` in RLlib


def to_rllib(episode: MultiAgentEpisode) -> Any:
    """Convert a chunk to RLlib's `MultiAgentEpisode`, with copies of its columns as NumPy arrays (`is_numpy`).

    Env states, common infos, the reset seed, and agents without a transition in this chunk have no counterpart in RLlib
    and are omitted. Hanging rewards of waiting agents are also omitted: RLlib stores them with the pending action,
    which here is only in the next chunk, where its result arrives. Episodes built by hand contain both, so both are
    converted.

    Raises:
        EpisodeError: If `episode` is not a fastmarl episode.
        ImportError: If Ray is not installed.
    """
    check_kind([episode])
    rllib = rllib_class("env.multi_agent_episode", "MultiAgentEpisode")
    buffer = rllib_class("env.utils.infinite_lookback_buffer", "InfiniteLookbackBuffer")
    agent_episodes = episode.agent_episodes
    other = rllib(
        id_=episode.id_,
        observation_space=dict(episode.observation_space),
        action_space=dict(episode.action_space),
        env_t_started=episode.env_t_started,
        agent_t_started={agent: agent_episode.t_started for agent, agent_episode in agent_episodes.items()},
        len_lookback_buffer=episode.lookback,
        agent_module_ids={agent: episode.module_for(agent) for agent in agent_episodes},
        agent_to_module_mapping_fn=episode.agent_to_module_mapping_fn,
    )
    other.env_t = episode.env_t
    other.is_terminated, other.is_truncated = episode.is_terminated, episode.is_truncated
    other._custom_data = copy.deepcopy(episode.custom_data)
    other._start_time, other._last_step_time = 0.0, episode.get_duration_s()
    for agent, agent_episode in agent_episodes.items():
        other.agent_episodes[agent] = _agent_episode_to_rllib(agent_episode, buffer)
        first = min(episode.env_t_started - episode.lookback, int(agent_episode.env_ts()[agent_episode.lookback]))
        entries = _entries(agent_episode, first, episode.env_t)
        other.env_t_to_agent_t[agent] = buffer(entries, lookback=episode.env_t_started - first)
    for agent, (action, extras) in episode.open_actions().items():
        other._hanging_actions_end[agent], other._hanging_extra_model_outputs_end[agent] = action, extras
        other._hanging_rewards_end[agent] = episode.chunk.hanging_rewards.get(agent, 0.0)
    other.validate()
    return other


def from_rllib(episode: Any) -> MultiAgentEpisode:
    """Convert a chunk from RLlib's `MultiAgentEpisode`, which is not modified and shares its arrays with the result.

    Agents without a transition in the chunk and hanging actions are dropped; hanging rewards are kept. RLlib does not
    record the env steps of observations before its lookback, so these are numbered backwards without gaps.

    Raises:
        EpisodeError: If the columns of the agents are inconsistent, or `episode` is not an RLlib episode.
    """
    if not hasattr(episode, "_hanging_rewards_end"):
        kind = type(episode)
        raise EpisodeError(f"expected an RLlib MultiAgentEpisode, got a {kind.__module__}.{kind.__qualname__}")
    if episode.agent_episodes and not episode.is_numpy:
        episode = copy.deepcopy(episode).to_numpy()
    agent_episodes = [
        _agent_episode_from_rllib(episode, agent, agent_episode)
        for agent, agent_episode in episode.agent_episodes.items()
        if len(agent_episode)
    ]
    waiting = {agent: entries.data[-1] == SKIPPED for agent, entries in episode.env_t_to_agent_t.items()}
    state = {
        "id_": episode.id_,
        "agent_episodes": agent_episodes,
        "agent_ids": [
            agent
            for agent, agent_episode in episode.agent_episodes.items()
            if len(agent_episode) or not agent_episode.is_done
        ],
        "env_t_started": episode.env_t_started,
        "env_t": episode.env_t,
        "lookback": episode._len_lookback_buffers,
        "is_terminated": episode.is_terminated,
        "is_truncated": episode.is_truncated,
        "common_infos": {},
        "hanging_rewards": {
            agent: float(reward) for agent, reward in episode._hanging_rewards_end.items() if waiting.get(agent)
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


def _agent_episode_to_rllib(agent_episode: Any, buffer: Any) -> Any:
    state = agent_episode.get_state()
    n = agent_episode.lookback

    def column(values: Any, space: Any = None) -> Any:
        made = buffer(map_struct(np.array, values), space=space)
        made.lookback = n  # if `values` is a dict, the constructor would clip this to its number of keys
        return made

    other = rllib_class("env.single_agent_episode", "SingleAgentEpisode")(
        id_=agent_episode.id_,
        agent_id=agent_episode.agent_id,
        module_id=agent_episode.module_id,
        multi_agent_episode_id=agent_episode.multi_agent_episode_id,
        observation_space=agent_episode.observation_space,
        action_space=agent_episode.action_space,
        observations=column(state["observations"], agent_episode.observation_space),
        infos=buffer(copy.deepcopy(state["infos"]), lookback=n),
        actions=column(state["actions"], agent_episode.action_space),
        rewards=column(state["rewards"]),
        extra_model_outputs={key: column(values) for key, values in state["extra_model_outputs"].items()},
        terminated=agent_episode.is_terminated,
        truncated=agent_episode.is_truncated,
        t_started=agent_episode.t_started,
        len_lookback_buffer=n,
    )
    other.custom_data.update(copy.deepcopy(agent_episode.custom_data))
    return other


def _entries(agent_episode: Any, first: int, last: int) -> list[int | str]:
    """Return the agent's step, or `SKIPPED`, at each env step from `first` to `last`."""
    step_of = {
        t: agent_episode.t_started - agent_episode.lookback + i for i, t in enumerate(agent_episode.env_ts().tolist())
    }
    return [step_of.get(t, SKIPPED) for t in range(first, last + 1)]


def _agent_episode_from_rllib(episode: Any, agent: Hashable, agent_episode: Any) -> dict[str, Any]:
    """Return the state dict for `SingleAgentEpisode.from_state()`."""
    return {
        "agent_id": agent,
        "module_id": agent_episode.module_id,
        "id_": agent_episode.id_,
        "multi_agent_episode_id": episode.id_,
        "lookback": agent_episode.observations.lookback,
        "t_started": agent_episode.t_started,
        "is_terminated": agent_episode.is_terminated,
        "is_truncated": agent_episode.is_truncated,
        "observations": agent_episode.observations.data,
        "env_ts": _env_ts(episode, agent, agent_episode),
        "infos": list(agent_episode.infos.data),
        "actions": agent_episode.actions.data,
        "rewards": as_rewards(agent_episode.rewards.data, f"rewards of agent {agent!r}"),
        "extra_model_outputs": {key: column.data for key, column in agent_episode.extra_model_outputs.items()},
        "custom_data": copy.deepcopy(agent_episode.custom_data),
    }


def _env_ts(episode: Any, agent: Hashable, agent_episode: Any) -> np.ndarray:
    """Return the env step of each observation, including the lookback, as int64."""
    buffer = episode.env_t_to_agent_t[agent]
    entries = list(buffer.data)
    superfluous = len(entries) - (len(episode) + buffer.lookback + 1)
    if superfluous > 0 and all(entry == SKIPPED for entry in entries[:superfluous]):
        del entries[:superfluous]  # if an agent joined later, RLlib's entries start at the beginning of the episode
    elif superfluous > 0:  # RLlib stores two entries for the step in which an agent finished without an observation
        del entries[max(i for i, entry in enumerate(entries) if entry != SKIPPED) - 1]
    begin = episode.env_t_started - buffer.lookback
    first = agent_episode.t_started - agent_episode.observations.lookback
    of_step = {entry - first: begin + i for i, entry in enumerate(entries) if entry != SKIPPED}
    n = agent_episode.infos.len_incl_lookback()
    known = [i for i in range(n) if i in of_step]
    if not known or known != list(range(known[0], n)):
        raise EpisodeError(f"agent {agent!r}: expected the env steps of all {n} observations in env_t_to_agent_t of "
                           f"RLlib's episode, but some are missing")  # fmt: skip
    before = [of_step[known[0]] - i for i in range(known[0], 0, -1)]
    return np.array([*before, *(of_step[i] for i in known)], np.int64)
