"""Episodes without the agents of some modules."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from fastmarl.episodes.chunk import ChunkParts
from fastmarl.episodes.getters import AgentID
from fastmarl.episodes.multi_agent import MultiAgentEpisode


def only_modules(episode: MultiAgentEpisode, wanted: Callable[[str], bool]) -> MultiAgentEpisode:
    """The same chunk as a runner made it, as if the agents of unwanted modules had not been there.

    Args:
        wanted: of a module id; asked once for each module of the chunk's agents.
    """
    known, parts, waiting_infos = _of_modules(episode, wanted)
    agents = set(known)
    return MultiAgentEpisode(
        id_=episode.id_,
        agent_episodes=parts,
        env_t_started=episode.env_t_started,
        env_t=episode.env_t,
        lookback=episode.lookback,
        is_terminated=episode.is_terminated,
        is_truncated=episode.is_truncated,
        common_infos=episode.get_common_infos(),
        waiting_infos=waiting_infos,
        hanging_rewards={agent: paid for agent, paid in episode._hanging_rewards.items() if agent in agents},
        custom_data=episode.custom_data,
        agent_ids=known,
        env_states=episode.env_states,
        duration_s=episode.get_duration_s(),
        reset_seed=episode.reset_seed,
        respawned=[agent for agent in episode._respawned if agent in agents],
    )


def _of_modules(episode: MultiAgentEpisode, wanted: Callable[[str], bool]) -> tuple[Collection[AgentID], Any, Any]:
    """(known agents, their parts or what makes them, what tells their waiting infos), of those of wanted modules."""
    made, parts = episode._make_parts, episode._agent_episodes
    if isinstance(made, ChunkParts):
        some = made.of_modules(wanted)
        agents = set(some.agent_ids)
        # A callback may have looked at the parts, and changed what they hold.
        kept = some if parts is None else {agent: parts[agent] for agent in parts if agent in agents}
        return some.agent_ids, kept, some.waiting_infos
    # A callback has compacted it: of agents without a part nobody knows the module any more, so they stay.
    parts = episode.agent_episodes
    answers = {module_id: wanted(module_id) for module_id in {str(part.module_id) for part in parts.values()}}
    kept = {agent: part for agent, part in parts.items() if answers[str(part.module_id)]}
    known = [agent for agent in episode._known_agents if agent in kept or agent not in parts]
    agents, infos = set(known), episode.get_waiting_infos()
    return known, kept, partial(dict, {agent: told for agent, told in infos.items() if agent in agents})
