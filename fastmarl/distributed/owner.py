"""Owner of a fleet, which ensures that the fleet is shut down."""

import atexit
import multiprocessing.util  # noqa: F401  registers its exit function before ours, so that ours runs first
import os
import weakref
from typing import Self

from fastmarl.core.errors import RunnerBusyError
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.distributed import sizes
from fastmarl.distributed.fleet import Fleet, raise_first


class FleetOwner:
    """Base class of objects that sample with a fleet.

    Args:
        fleet: A fleet without runners.
        n: Number of runners to start.

    Attributes:
        module: The modules, for training in this process.
    """

    module: MultiRLModule

    def __init__(self, fleet: Fleet, n: int):
        self._fleet = fleet
        # Runs automatically only if the object was never closed, or at interpreter exit.
        self._finalizer = weakref.finalize(self, _end, fleet, os.getpid())
        atexit.register(self._finalizer)
        try:
            sizes.add(fleet, range(n))
            start = fleet.runners[0].start
            assert start is not None and start.module is not None
            self.module, start.module = start.module, None
            fleet.weights.publish(self.module.get_state())
        except BaseException:
            self._end()
            raise

    @property
    def _is_over(self) -> bool:
        return not self._finalizer.alive

    def _check_open(self) -> None:
        """Check that the object is open.

        Raises:
            RunnerStoppedError: If it was closed.
        """
        raise NotImplementedError

    def _close(self, method: str) -> None:
        """Close the envs of the runners, terminate the runners, and raise the first error.

        If another call is running, as in a signal handler or in another thread, the runners are terminated immediately.
        """
        try:
            self._fleet.check_idle(method)
        except RunnerBusyError:
            self._end()
            return
        try:
            calls = self._fleet.close(self._fleet.runners)
        finally:
            self._end()
        raise_first(calls)

    def _end(self) -> None:
        """Terminate all runners in any state."""
        self._finalizer()
        atexit.unregister(self._finalizer)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._is_over:
            return
        if kind is None:
            self._close("__exit__()")
        else:
            self._end()


def _end(fleet: Fleet, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has copies of the objects but does not own the runners
        fleet.end()
