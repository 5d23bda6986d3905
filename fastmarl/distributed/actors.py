"""Transports of a fleet: hosts in this process, in local processes, or in Ray actors."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from fastmarl.core.errors import EnvRunnerLostError, RemoteEnvRunnerError


class ActorLost(Exception):
    """Raised if an actor has exited or its result is lost. Its text is a predicate, such as "was closed"."""


class Actors(Protocol):
    """Starts actors, each with a `RunnerHost`, and calls them. An actor executes its calls in order.

    Attributes:
        most_in_flight: Maximum number of sample() calls queued at an actor.
        lends_arrays: True if arrays in results are read-only views of memory not owned by the caller.
        late_start: Advice appended to the error about an actor that has not started in time.
        runner_name: Format string for the name of a runner in errors, filled with its index.
        lost: Function (index, problem) -> error about an exited runner.
        late: Function (index, problem) -> error about a timed-out runner.
    """

    most_in_flight: float = float("inf")
    lends_arrays: bool = False
    late_start: str = ""
    runner_name: str = "env runner {}"
    lost: type[Exception] = EnvRunnerLostError
    late: type[Exception] = EnvRunnerLostError

    def foreign(self, index: int, problem: str) -> Exception:
        """Return a substitute for an error that cannot be pickled; `problem` is the type and text of the original."""
        return RemoteEnvRunnerError(problem)

    @property
    def is_running(self) -> bool:
        """True until the system that runs the actors is shut down."""
        return True

    def start(self) -> Any:
        """Start an actor and return its handle immediately."""

    def call(self, handle: Any, method: str, *args: Any) -> Hashable:
        """Call a method of the actor's host and immediately return a reference to the result.

        The first call of an actor is `start`; see `RunnerHost.call()`. References from `put()` or `publish()` among the
        arguments are replaced by their values.
        """

    def put(self, value: Any) -> Any:
        """Return a reference to a copy of the value for use in calls, or the value itself if calls copy it."""
        return value

    def publish(self, weights: Any, seq_no: int) -> Any:
        """Publish these weights, a result of `put()`, as the latest ones, with sequence number `seq_no`.

        Returns:
            The object that calls pass to the host.
        """
        return weights

    def fetch(self, weights: Any) -> Any:
        """Return the weights behind a result of `publish()`."""
        return weights

    def wait(self, references: Sequence[Any], num_returns: int, timeout_s: float) -> Sequence[Any]:
        """Return at most `num_returns` references with results, waiting up to `timeout_s` seconds for the first."""

    def is_answered(self, reference: Any) -> bool:
        """Return whether there is a result, even if it is still in transit from another machine."""

    def get(self, reference: Any) -> Any:
        """Return a result that has arrived.

        Raises:
            ActorLost: If there will never be a result.
            HostFailure: If the host, in another process, raised an error.
            Exception: The error of the host, if it runs in this process, or an error while reading the result.
        """

    def kill(self, handle: Any) -> None:
        """Kill an actor in any state, even if it has already exited."""

    def close(self) -> None:
        """Ask all actors to close their envs and exit; the caller then kills them one by one."""
        return
