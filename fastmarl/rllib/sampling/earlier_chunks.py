"""What callbacks are shown of the chunks that sample() returned before they were there."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from fastmarl.rllib.store.records import ChunkNumbers


@dataclass(frozen=True, slots=True)
class EarlierAgent:
    """One agent in numbers.

    Attributes:
        n_steps: completed ones.
    """

    agent_id: Hashable
    module_id: str
    n_steps: int
    total: Any

    def __len__(self) -> int:
        return self.n_steps

    def get_return(self) -> Any:
        """Sum of its rewards."""
        return self.total


class EarlierChunk:
    """A chunk that was returned before RLlib's loop took over: what RLlib's metrics ask of it is known, and no more."""

    def __init__(self, numbers: ChunkNumbers):
        self._numbers = numbers
        self.agent_episodes = {numbers_of[0]: EarlierAgent(*numbers_of) for numbers_of in numbers.agents}

    def __len__(self) -> int:
        return self._numbers.length

    def get_return(self) -> Any:
        """Sum of all agents' rewards."""
        return sum(agent.total for agent in self.agent_episodes.values())

    def get_duration_s(self) -> float:
        """Seconds."""
        return self._numbers.duration_s

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} of a chunk that sample() returned before this callback was added: only len(), get_return(), "
            "get_duration_s() and agent_episodes are known of it; add callbacks before the first call of sample()"
        )
