"""Ids of episodes and of what belongs to them: 32 hexadecimal digits, different in all runners."""

import uuid

from fastmarl.core.native._records import episode_id


class EpisodeIds:
    """Makes ids for one run, from consecutive numbers. Their first digits alone tell episodes apart, as a UUID's do.

    Attributes:
        run_id: the last digits of all.
    """

    def __init__(self) -> None:
        digits = uuid.uuid4().hex + uuid.uuid4().hex
        self.run_id = digits[:20]
        self._next = int(digits[-12:], 16)  # runs begin at different numbers, so that first digits differ between them

    def reserve(self, n: int) -> int:
        """The first of the next `n` numbers, which are given out once."""
        first, self._next = self._next, self._next + n
        return first

    def new(self) -> str:
        """The next id."""
        return episode_id(self.run_id, self.reserve(1))
