"""Pickles sampled episodes as a single block for all episodes of a call, unless they have been modified.

Every episode is reduced to its SampleBlock and an index into it; pickle writes the block only once, with the first
episode. Infos and custom data, which may have been modified, are taken from the episode. If anything else has changed,
the episode is pickled as in RLlib.
"""

from typing import Any

import numpy as np

from fastmarl.core.native import _rllib_episodes as compiled
from fastmarl.rllib.episodes.sample_block import AgentMeta, ChunkMeta, SampleBlock


def reduced(episode: Any, block: SampleBlock, i: int, was_looked_at: bool) -> tuple | None:
    """Return the value of `__reduce_ex__()` that rebuilds the episode from its block, or None if it was modified.

    Args:
        episode: The episode.
        block: The block from which it was built.
        i: Its index in the block.
        was_looked_at: True if its agent episodes have been built.
    """
    chunk = block.chunks[i]
    if not _is_unchanged(episode, chunk) or (was_looked_at and not _has_unchanged_agents(episode, block, chunk)):
        return None
    infos = {}
    if was_looked_at:
        for agent_id, agent_episode in episode.agent_episodes.items():
            if any(agent_episode.infos.data):
                infos[agent_id] = agent_episode.infos.data
    return _rebuilt, (block, i, infos, episode._custom_data or None)


def _rebuilt(block: SampleBlock, i: int, infos: dict, custom_data: dict | None) -> Any:
    episode = block.episode(i)
    for agent_id, values in infos.items():
        episode.agent_episodes[agent_id].infos.data = values
    episode._custom_data = custom_data or {}
    return episode


def _is_unchanged(episode: Any, chunk: ChunkMeta) -> bool:
    return (
        (episode.id_, episode.env_t_started, episode.env_t) == (chunk.id_, chunk.env_t_started, chunk.env_t)
        and (episode.is_terminated, episode.is_truncated) == chunk.flags
        and episode._len_lookback_buffers == chunk.lookback
        and episode._agent_to_module_mapping == chunk.mapping
        and len(episode._hanging_actions_end) == len(chunk.hanging)
    )


def _has_unchanged_agents(episode: Any, block: SampleBlock, chunk: ChunkMeta) -> bool:
    agents = [agent for agent in chunk.agents if agent.agent_episode_id is not None]
    return (
        list(episode.agent_episodes) == [agent.agent_id for agent in agents]
        and all(len(episode.env_t_to_agent_t[agent.agent_id].data) == agent.time_map[0] for agent in chunk.agents)
        and all(_is_unchanged_agent(episode.agent_episodes[a.agent_id], block, chunk, a) for a in agents)
    )


def _is_unchanged_agent(agent_episode: Any, block: SampleBlock, chunk: ChunkMeta, agent: AgentMeta) -> bool:
    columns = block.modules[agent.module]
    if agent.odd or columns is None or len(columns.obs) != 1 or type(agent_episode.observations.data) is not np.ndarray:
        return False
    begin, end = agent.steps
    observed = (agent.obs_begin, agent.obs_begin + end - begin + 1)
    t = agent.t_started + end - begin - agent.lookback
    known = (agent.agent_episode_id, chunk.id_, agent.module_id, agent.t_started, t, *agent.flags)
    found = (
        agent_episode.id_,
        agent_episode.multi_agent_episode_id,
        agent_episode.module_id,
        agent_episode.t_started,
        agent_episode.t,
        agent_episode.is_terminated,
        agent_episode.is_truncated,
    )
    return (
        known == found
        and not agent_episode._custom_data
        and len(agent_episode.infos.data) == end - begin + 1
        and agent_episode.observations.lookback
        == agent_episode.actions.lookback
        == agent_episode.rewards.lookback
        == agent.lookback
        and compiled.is_slice(agent_episode.observations.data, columns.obs[0], *observed)
        and compiled.is_slice(agent_episode.rewards.data, columns.rewards, begin, end)
        and _has_columns(agent_episode, columns.outputs, begin, end)
    )


def _has_columns(agent_episode: Any, outputs: dict, begin: int, end: int) -> bool:
    """Return True if actions and other outputs are still the original slices; False for nested outputs."""
    for key, column in outputs.items():
        if type(key) is not str:
            return False
        buffer = agent_episode.actions if key == "actions" else agent_episode.extra_model_outputs.get(key)
        if buffer is None or not compiled.is_slice(buffer.data, column, begin, end):
            return False
    return len(agent_episode.extra_model_outputs) == len(outputs) - 1 + (len(outputs) > 1)
