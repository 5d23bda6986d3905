"""Whether an agent's columns go together, asked of all agents in every env step."""

from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer


def is_consistent(agent_episode: SingleAgentEpisode) -> bool:
    """True where `agent_episode.validate()` would find nothing. If it is False, that method has to be asked.

    Only episodes in lists are answered, and only those that have begun.
    """
    if type(agent_episode) is not SingleAgentEpisode:
        return False
    n = _length(agent_episode.observations)
    if n < 1 or _length(agent_episode.infos) != n:
        return False
    if not _length(agent_episode.rewards) == _length(agent_episode.actions) == n - 1:
        return False
    for column in agent_episode.extra_model_outputs.values():  # noqa: SIM110  a generator costs more than the rest
        if _length(column) != n - 1:
            return False
    return True


def _length(buffer: InfiniteLookbackBuffer) -> int:
    """Without the lookback; -1 of arrays."""
    if type(buffer) is not InfiniteLookbackBuffer or buffer.finalized:
        return -1
    return max(len(buffer.data) - buffer.lookback, 0)
