"""Notes that envs, policies, mapping functions and callbacks of the old stack write on the tape about episodes."""

from typing import Any

from rllib.differential.tape import Id, freeze


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
