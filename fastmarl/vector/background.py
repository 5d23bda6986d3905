"""Steps that are made in another thread, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread


class BackgroundSteps:
    """Makes steps in the order in which they are begun. The thread ends when none is left, and begins with the next.

    It is a daemon: a step that hangs does not keep the process from ending.
    """

    def __init__(self) -> None:
        self._n_begun = 0  # and not finished
        self._steps: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._results: SimpleQueue[BaseException | None] = SimpleQueue()

    def begin(self, step: Callable[[], None]) -> None:
        """Make this step when those before are made."""
        if not self._n_begun:
            self._steps, self._results = SimpleQueue(), SimpleQueue()
            Thread(target=_make, args=(self._steps, self._results), name="fastmarl-steps", daemon=True).start()
        self._n_begun += 1
        self._steps.put(step)

    def finish(self) -> None:
        """Wait for the first step that was begun. Raises what it has raised."""
        error = self._results.get()
        self._n_begun -= 1
        if not self._n_begun:
            self._steps.put(None)
        if error is not None:
            raise error

    def drain(self) -> None:
        """Wait for all of them, whatever they raise."""
        while self._n_begun:
            try:
                self.finish()
            except Exception:
                continue


def _make(steps: SimpleQueue[Callable[[], None] | None], results: SimpleQueue[BaseException | None]) -> None:
    while (step := steps.get()) is not None:
        try:
            step()
            results.put(None)
        except BaseException as error:
            results.put(error)
