"""Episodes without the agents of some modules."""

from collections.abc import Callable
from dataclasses import replace

from fastmarl.episodes.chunk import Chunk
from fastmarl.episodes.multi_agent import MultiAgentEpisode


def only_modules(episode: MultiAgentEpisode, wanted: Callable[[str], bool]) -> MultiAgentEpisode:
    """The same chunk as a runner made it, as if the agents of unwanted modules had not been there.

    Args:
        wanted: of a module id; asked once for each module of the chunk's agents.
    """
    chunk = episode.chunk
    built = chunk.agent_episodes
    if chunk.lanes is not None:
        lanes = chunk.lanes.of_modules(wanted)
        agents = set(lanes.agent_ids)
        # A callback may have looked at the agent episodes, and changed what they hold.
        kept = built and {agent: agent_episode for agent, agent_episode in built.items() if agent in agents}
        some = replace(chunk, agent_episodes=kept, agent_ids=lanes.agent_ids, lanes=lanes)
    else:
        some = _of_compacted(episode, wanted)
    agents, some.module_of = set(some.agent_ids), {}
    some.hanging_rewards = {agent: paid for agent, paid in chunk.hanging_rewards.items() if agent in agents}
    some.respawned = [agent for agent in chunk.respawned if agent in agents]
    return MultiAgentEpisode.of(some)


def _of_compacted(episode: MultiAgentEpisode, wanted: Callable[[str], bool]) -> Chunk:
    """A callback has compacted it: of agents without an episode nobody knows the module any more, so they stay."""
    agent_episodes = episode.agent_episodes
    answers = {
        module_id: wanted(module_id)
        for module_id in {str(agent_episode.module_id) for agent_episode in agent_episodes.values()}
    }
    kept = {
        agent: agent_episode for agent, agent_episode in agent_episodes.items() if answers[str(agent_episode.module_id)]
    }
    known = [agent for agent in episode.chunk.agent_ids if agent in kept or agent not in agent_episodes]
    infos = {agent: infos for agent, infos in episode.get_waiting_infos().items() if agent in known}
    return replace(episode.chunk, agent_episodes=kept, agent_ids=known, waiting_infos=infos)
