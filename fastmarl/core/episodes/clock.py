"""A clock that stands still between two calls of sample()."""

from time import perf_counter


class Clock:
    """Seconds in which it ran."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._started_at: float | None = None

    def start(self) -> None:
        """Run from now on."""
        if self._started_at is None:
            self._started_at = perf_counter()

    def stop(self) -> None:
        """Stand still from now on."""
        self._elapsed, self._started_at = self.now(), None

    def now(self) -> float:
        """Seconds up to now."""
        return self._elapsed + (0.0 if self._started_at is None else perf_counter() - self._started_at)
