"""Execution of steps in another thread, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event, Thread


class BackgroundSteps:
    """Runs steps in the order in which they are begun, in a thread that lives from the first one until `end()`.

    It is a daemon thread, so a step that hangs does not keep the process from ending.
    """

    def __init__(self) -> None:
        self._ended: Event | None = None  # set when the thread ends; None: no thread
        self._steps: SimpleQueue[Callable[[], None] | None]
        self._results: SimpleQueue[BaseException | None]

    def begin(self, step: Callable[[], None]) -> None:
        """Queue a step, to be run with the context variables that are set here."""
        if self._ended is None:
            self._steps, self._results, ended = SimpleQueue(), SimpleQueue(), Event()
            arguments = (_make, self._steps, self._results, ended)
            try:
                Thread(target=copy_context().run, args=arguments, name="fastmarl-steps", daemon=True).start()
                self._ended = ended
            except BaseException:  # an interrupt, after which the thread may have begun
                self._steps.put(None)
                raise
        self._steps.put(step)

    def finish(self) -> None:
        """Wait for the earliest step that was begun, and raise its error."""
        error = self._results.get()
        if error is not None:
            raise error

    def end(self) -> None:
        """Wait for all steps, ignore their errors, and end the thread. After an interrupt, call it again."""
        # Results are not counted, as an interrupted wait may or may not have taken one. The thread is not joined: in
        # Python 3.11 a thread whose join() was interrupted counts as ended.
        if self._ended is not None:
            self._steps.put(None)
            self._ended.wait()
            self._ended = None


def _make(
    steps: SimpleQueue[Callable[[], None] | None], results: SimpleQueue[BaseException | None], ended: Event
) -> None:
    while (step := steps.get()) is not None:
        try:
            step()
            results.put(None)
        except BaseException as error:
            results.put(error)
    ended.set()
