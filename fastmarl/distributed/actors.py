"""Transports of a fleet: hosts in this process, in processes of this machine, or in Ray actors."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from fastmarl.core.errors import EnvRunnerLostError, RemoteEnvRunnerError


class ActorLost(Exception):
    """An actor has ended, or its result is lost. The text completes a sentence about the actor: "has ended"."""


class Actors(Protocol):
    """Starts actors, each with a `RunnerHost`, and calls them. An actor executes its calls in order.

    Attributes:
        most_in_flight: Most calls of sample() that may be queued at an actor.
        lends_arrays: Whether arrays in results are read-only views of memory that the caller doesn't own.
        late_start: Advice, appended to the error about an actor that has not started in time.
        runner_name: Name of a runner in errors, a format string that takes its index.
        lost: (index, problem) -> the error about a runner that has ended.
        late: (index, problem) -> the error about a runner that has timed out.
    """

    most_in_flight: float = float("inf")
    lends_arrays: bool = False
    late_start: str = ""
    runner_name: str = "env runner {}"
    lost: type[Exception] = EnvRunnerLostError
    late: type[Exception] = EnvRunnerLostError

    def foreign(self, index: int, problem: str) -> Exception:
        """Return an error that replaces one that can't be pickled; `problem` is the original's type and text."""
        return RemoteEnvRunnerError(problem)

    @property
    def is_running(self) -> bool:
        """True while actors can exist, so not after the end of the system that runs them."""
        return True

    def start(self) -> Any:
        """Start an actor and return its handle at once."""

    def call(self, handle: Any, method: str, *args: Any) -> Hashable:
        """Call a method of the actor's host and return a reference to the result at once.

        The first call of an actor is `start`; see `RunnerHost.call()`. References from `put()` or `publish()` among the
        arguments are replaced by their values.
        """

    def put(self, value: Any) -> Any:
        """Return a reference to a copy of the value, for calls; or the value itself if it is copied later."""
        return value

    def publish(self, weights: Any, seq_no: int) -> Any:
        """Make these weights, which `put()` has returned, the newest, numbered `seq_no`.

        Returns:
            The object that calls pass to the host.
        """
        return weights

    def fetch(self, weights: Any) -> Any:
        """Return the weights behind a result of `publish()`."""
        return weights

    def wait(self, references: Sequence[Any], num_returns: int, timeout_s: float) -> Sequence[Any]:
        """Return references whose results have arrived, at most `num_returns`."""

    def is_answered(self, reference: Any) -> bool:
        """Return true if there is a result, even if it is still on its way from another machine."""

    def get(self, reference: Any) -> Any:
        """Return a result that has arrived.

        Raises:
            ActorLost: If there will be no result.
            HostFailure: If the host has raised an error in another process.
            Exception: If the host has raised it in this process, or the result can't be read.
        """

    def kill(self, handle: Any) -> None:
        """End an actor, whatever it is doing. It may have ended already."""

    def close(self) -> None:
        """Ask all actors to close their environments and end; afterwards they are killed one by one."""
        return
