"""Ids of episodes and of what belongs to them: 32 hexadecimal digits, different in all runners."""

import uuid

from fastmarl.native._records import episode_id


class EpisodeIds:
    """Numbers within a run.

    Attributes:
        run_id: the first digits of all.
    """

    def __init__(self) -> None:
        self.run_id = uuid.uuid4().hex[:20]
        self._n = 0

    def reserve(self, n: int) -> int:
        """The first of the next `n` numbers, which nobody else gets."""
        first, self._n = self._n + 1, self._n + n
        return first

    def new(self) -> str:
        """An id that nobody else gets."""
        return episode_id(self.run_id, self.reserve(1))
