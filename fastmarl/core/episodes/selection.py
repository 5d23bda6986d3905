"""Selects agents of an episode by their modules."""

from collections.abc import Callable, Hashable
from dataclasses import replace

from fastmarl.core.episodes.chunk import Chunk
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode


def only_modules(episode: MultiAgentEpisode, wanted: Callable[[str], bool]) -> MultiAgentEpisode:
    """Return a chunk without the agents of unwanted modules, as if these agents had never existed.

    Args:
        wanted: Returns True for the module ids to keep; called once per module of the chunk.
    """
    chunk = episode.chunk
    lanes = None if chunk.lanes is None else chunk.lanes.of_modules(wanted)
    agent_ids = _of_compacted(chunk, wanted) if lanes is None else lanes.agent_ids
    agents = set(agent_ids)
    built = chunk.agent_episodes  # these may have been changed by a callback
    some = replace(
        chunk,
        agent_episodes=built and {agent: agent_episode for agent, agent_episode in built.items() if agent in agents},
        agent_ids=agent_ids,
        waiting_infos={agent: infos for agent, infos in chunk.waiting_infos.items() if agent in agents},
        hanging_rewards={agent: reward for agent, reward in chunk.hanging_rewards.items() if agent in agents},
        respawned=[agent for agent in chunk.respawned if agent in agents],
        lanes=lanes,
        module_of={},
    )
    return MultiAgentEpisode.of(some)


def _of_compacted(chunk: Chunk, wanted: Callable[[str], bool]) -> list[Hashable]:
    """Select the agents of a compacted chunk. Agents without agent episodes are kept, as their modules are unknown."""
    module_of = {agent: str(agent_episode.module_id) for agent, agent_episode in (chunk.agent_episodes or {}).items()}
    modules = {module_id for module_id in set(module_of.values()) if wanted(module_id)}
    return [agent for agent in chunk.agent_ids if agent not in module_of or module_of[agent] in modules]
