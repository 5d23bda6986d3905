"""A host in this process, called as if it were in an actor."""

from collections.abc import Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from fastmarl.core.errors.exits import as_error
from fastmarl.distributed.actors import Actors
from fastmarl.distributed.host import RunnerHost


@dataclass(frozen=True, eq=False)
class Put:
    """Result of `InProcess.put()`, replaced by its value when a call uses it as an argument."""

    value: Any


@dataclass(eq=False)
class Deferred:
    """A call that is only executed when its result is awaited."""

    host: RunnerHost
    method: str
    args: tuple
    is_made: bool = False
    value: Any = None
    error: Exception | None = None

    def make(self) -> None:
        """Execute the call; an interrupt leaves it unexecuted."""
        args = [arg.value if isinstance(arg, Put) else arg for arg in self.args]
        try:
            self.value = self.host.call(self.method, *args)
        except (Exception, SystemExit) as raised:
            self.error = as_error(raised)
        self.is_made = True


class InProcess(Actors):
    """The transport for a runner in this process; see `Actors`.

    It executes one call at a time, when the result is awaited, with the arguments as they were at the time of the call.
    """

    most_in_flight = 1.0

    def start(self) -> RunnerHost:
        return RunnerHost()

    def call(self, handle: RunnerHost, method: str, *args: Any) -> Hashable:
        return Deferred(handle, method, args)

    def put(self, value: Any) -> Put:
        return Put(deepcopy(value))

    def fetch(self, reference: Put) -> Any:
        return deepcopy(reference.value)

    def wait(self, references: Sequence[Any], num_returns: int, timeout_s: float) -> Sequence[Any]:
        made = [each for each in references if each.is_made][:num_returns]
        if not made and timeout_s > 0:
            references[0].make()
            made = [references[0]]
        return made

    def is_answered(self, reference: Deferred) -> bool:
        return reference.is_made

    def get(self, reference: Deferred) -> Any:
        if reference.error is not None:
            raise reference.error
        return reference.value

    def kill(self, handle: RunnerHost) -> None:
        handle.stop()
