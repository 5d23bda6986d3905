"""A fleet's transports: hosts in this process, in processes of this machine, or in Ray's actors."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from fastmarl.core.errors import EnvRunnerLostError, RemoteEnvRunnerError


class ActorLost(Exception):
    """An actor has ended, or its result is lost. The text says how, of the actor: "has ended"."""


class Actors(Protocol):
    """Starts actors that have a `RunnerHost` each, and calls them. An actor does what it is told in order.

    Attributes:
        most_in_flight: calls of sample() that an actor may have before it.
        lends_arrays: whether arrays in results lie in memory that is not the caller's, and can't be written to.
        late_start: for the error about an actor that has not started in time: the way out.
        runner_name: in errors; the index is filled in.
        lost, late: index, problem -> the error about a runner that has ended, or has taken too long.
    """

    most_in_flight: float = float("inf")
    lends_arrays: bool = False
    late_start: str = ""
    runner_name: str = "env runner {}"
    lost: type[Exception] = EnvRunnerLostError
    late: type[Exception] = EnvRunnerLostError

    def foreign(self, index: int, problem: str) -> Exception:
        """The error in place of one that can't be pickled; its type and text are the problem."""
        return RemoteEnvRunnerError(problem)

    @property
    def is_running(self) -> bool:
        """Whether there can be actors: not after the end of what they run in."""
        return True

    def start(self) -> Any:
        """Start an actor; returns its handle at once."""

    def call(self, handle: Any, method: str, *args: Any) -> Hashable:
        """Call a method of its host, see `RunnerHost.call()`; the first one is `start`. Returns a reference to the
        result at once. References of `put()` or `publish()` among the arguments are replaced by their values."""

    def put(self, value: Any) -> Any:
        """A reference to a copy of the value, for calls; or the value itself, where it is copied later."""
        return value

    def publish(self, weights: Any, seq_no: int) -> Any:
        """Have these weights, which `put()` has returned, as the newest, of this number; returns what calls bring."""
        return weights

    def fetch(self, weights: Any) -> Any:
        """The weights that `publish()` has returned."""
        return weights

    def wait(self, references: Sequence[Any], num_returns: int, timeout_s: float) -> Sequence[Any]:
        """At most `num_returns` of the references whose results have come."""

    def is_answered(self, reference: Any) -> bool:
        """Whether there is a result, though it may not have come yet: from another machine it takes its time."""

    def get(self, reference: Any) -> Any:
        """A result that has come.

        Raises:
            ActorLost: there will be none.
            HostFailure: the host has raised something in another process.
            Exception: the host has raised it in this one, or the result can't be taken.
        """

    def kill(self, handle: Any) -> None:
        """End an actor, whatever it does; it may have ended."""

    def close(self) -> None:
        """End all actors that can close what they have; they are killed one by one after that."""
        return
