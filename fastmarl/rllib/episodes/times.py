"""A list of an agent's times in which RLlib's replay buffers find what they look for."""

from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode


class ChunkTimes(list):
    """The entries of one agent in a chunk in which its own time does not begin with 0.

    RLlib's replay buffers look up a step that they count from the chunk's begin, where the entries count from the
    episode's; nothing else looks for entries by value. To everybody else it is a list.

    Attributes:
        t_started: the agent's time at the chunk's begin.
    """

    __slots__ = ("t_started",)

    def __init__(self, times: Any = (), t_started: int = 0):
        super().__init__(times)
        self.t_started = t_started

    def index(self, step: Any, *bounds: Any) -> int:
        """Place of the entry for the agent's step number `step` of the chunk."""
        return super().index(step if step == RLlibEpisode.SKIP_ENV_TS_TAG else self.t_started + step, *bounds)


def prepare_for_replay(episode: RLlibEpisode) -> None:
    """Give agents whose time does not begin with 0 lists in which their steps are found."""
    for agent, agent_episode in episode.agent_episodes.items():
        buffer = episode.env_t_to_agent_t.get(agent)
        if agent_episode.t_started and buffer is not None:
            buffer.data = ChunkTimes(buffer.data, agent_episode.t_started)
