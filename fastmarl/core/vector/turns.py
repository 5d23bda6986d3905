"""Base class of vectors whose parts alternate: some are stepped while actions are chosen for others."""

from collections.abc import Sequence
from typing import Generic, TypeVar

Split = TypeVar("Split")


class TakesTurns(Generic[Split]):
    """Base class that manages the turns of a vector whose envs are stepped part by part.

    Args:
        parts: All parts, in the order of their first turns.

    Attributes:
        n_stepping: Number of envs whose actions were sent but whose steps are not recorded yet.
    """

    def __init__(self, parts: list[Split]):
        self._splits = parts
        self._begin_turns()

    def _begin_turns(self) -> None:
        """Start with the first part and no pending steps."""
        self._idle = list(self._splits)
        self._stepping: list[Split] = []  # in the order in which they received actions
        self.n_stepping = 0

    def turns(self) -> list[int]:
        """Return the indices of the parts not being stepped, in the order of their next turns."""
        return [self._splits.index(part) for part in self._idle]

    def resume(self, env_indices: Sequence[int], turns: list[int]) -> None:
        """Continue the stored episodes of these envs.

        Args:
            env_indices: Indices of the envs.
            turns: Result of `turns()`; ignored if the number of parts differs.
        """
        if sorted(turns) == list(range(len(self._splits))):
            self._idle = [self._splits[number] for number in turns]

    def send(self) -> int:
        """Start a step of all envs that are neither being stepped nor resting; return their number."""
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
        """Return True if any env of the part is not resting."""
        raise NotImplementedError

    def _send(self, parts: list[Split]) -> int:
        """Start a step of all envs in these parts except resting ones; return their number."""
        raise NotImplementedError

    def _end_turn(self, part: Split) -> Split:
        """Queue a part for its next turn, before its step is recorded; return the part."""
        self._stepping.remove(part)
        self._idle.append(part)
        return part
