"""Parts of the envs that take turns: some are stepped while others' actions are chosen."""

from collections.abc import Sequence
from typing import Generic, TypeVar

Split = TypeVar("Split")


class TakesTurns(Generic[Split]):
    """What vectors do alike whose envs are stepped part by part.

    Args:
        parts: all of them, in the order of their first turns.

    Attributes:
        n_stepping: envs that were sent actions, and whose steps have not been recorded.
    """

    def __init__(self, parts: list[Split]):
        self._splits = parts
        self._begin_turns()

    def _begin_turns(self) -> None:
        """With the first part, and nothing under way."""
        self._idle = list(self._splits)
        self._stepping: list[Split] = []  # in the order in which they were sent actions
        self.n_stepping = 0

    def turns(self) -> list[int]:
        """The parts that are not being stepped, by number, in the order of their turns from now on."""
        return [self._splits.index(part) for part in self._idle]

    def resume(self, env_indices: Sequence[int], turns: list[int]) -> None:
        """These envs are in the midst of the episodes that the store has of them. `turns()` had given these; those of
        another number of parts don't matter."""
        if sorted(turns) == list(range(len(self._splits))):
            self._idle = [self._splits[number] for number in turns]

    def send(self) -> int:
        """Have all envs stepped that are not being stepped and don't rest; returns their number."""
        idle: list[Split] = []
        going: list[Split] = []
        for part in self._idle:
            (going if self._is_awake(part) else idle).append(part)
        n_sent = self._send(going)
        self._idle = idle
        self._stepping += going
        self.n_stepping += n_sent
        return n_sent

    def _is_awake(self, part: Split) -> bool:
        """Whether some env of the part doesn't rest."""
        raise NotImplementedError

    def _send(self, parts: list[Split]) -> int:
        """Have the envs of these parts stepped that don't rest; returns their number."""
        raise NotImplementedError

    def _end_turn(self, part: Split) -> Split:
        """The part's step is recorded next; afterwards it waits for its next turn."""
        self._stepping.remove(part)
        self._idle.append(part)
        return part
