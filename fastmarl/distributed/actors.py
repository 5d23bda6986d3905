"""What a group needs of whatever runs its hosts: Ray's actors, or this process."""

from collections.abc import Hashable, Sequence
from typing import Any, Protocol


class ActorLost(Exception):
    """An actor has ended, or its result is lost."""


class Actors(Protocol):
    """Starts actors that have a `RunnerHost` each, and calls them. An actor does what it is told in order.

    Attributes:
        most_in_flight: calls of sample() that an actor may have before it.
    """

    most_in_flight: float

    @property
    def is_running(self) -> bool:
        """Whether there can be actors: not after the end of what they run in."""

    def start(self) -> Any:
        """Start an actor; returns its handle at once."""

    def call(self, handle: Any, method: str, *args: Any) -> Hashable:
        """Call a method of its host; returns a reference to the result at once. Arguments that are references are
        replaced by what they stand for."""

    def put(self, value: Any) -> Hashable:
        """A reference to a copy of the value, for calls."""

    def fetch(self, reference: Any) -> Any:
        """What a reference of `put()` stands for."""

    def wait(self, references: Sequence[Any], num_returns: int, timeout_s: float) -> Sequence[Any]:
        """At most `num_returns` of the references whose results have come."""

    def is_answered(self, reference: Any) -> bool:
        """Whether there is a result, though it may not have come yet: from another machine it takes its time."""

    def get(self, reference: Any) -> Any:
        """A result that has come, or what was raised there.

        Raises:
            ActorLost: there will be none.
        """

    def kill(self, handle: Any) -> None:
        """End an actor, whatever it does; it may have ended."""
