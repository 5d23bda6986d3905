"""Episodes without the agents of some modules."""

from collections.abc import Callable

from fastmarl.chunk import ChunkParts
from fastmarl.episodes import MultiAgentEpisode


def only_modules(episode: MultiAgentEpisode, wanted: Callable[[str], bool]) -> MultiAgentEpisode:
    """The same chunk as a runner made it, as if the agents of unwanted modules had not been there.

    Args:
        wanted: of a module id; asked once for each module of the chunk's agents.
    """
    made = episode._make_parts
    assert isinstance(made, ChunkParts)
    some = made.of_modules(wanted)
    agents = set(some.agent_ids)
    parts = episode._agent_episodes  # a callback may have looked at them, and changed what they hold
    return MultiAgentEpisode(
        id_=episode.id_,
        agent_episodes=some if parts is None else {agent: parts[agent] for agent in parts if agent in agents},
        env_t_started=episode.env_t_started,
        env_t=episode.env_t,
        lookback=episode.lookback,
        is_terminated=episode.is_terminated,
        is_truncated=episode.is_truncated,
        common_infos=episode.get_common_infos(),
        waiting_infos=some.waiting_infos,
        hanging_rewards={agent: paid for agent, paid in episode._hanging_rewards.items() if agent in agents},
        custom_data=episode.custom_data,
        agent_ids=some.agent_ids,
        env_states=episode.env_states,
        duration_s=episode.get_duration_s(),
        reset_seed=episode.reset_seed,
        respawned=[agent for agent in episode._respawned if agent in agents],
    )
