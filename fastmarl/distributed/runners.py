"""Record of a single runner in a fleet."""

from dataclasses import dataclass, field
from typing import Any

from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.distributed.host import ENV_STEPS, HostReady, HostReport

NOTHING_SENT = -1


@dataclass(eq=False)
class RemoteRunner:
    """The known state of a runner in an actor, even while it is being replaced.

    Attributes:
        index: Index of the runner, from 0.
        incarnation: Number of earlier runners with this index.
        handle: Handle of its actor.
        start: Report of its host after starting, or None while it is starting.
        was_ready: True if a runner with this index has ever been ready.
        is_lost: True if it has exited and is not replaced.
        is_leaving: True if it is being stopped and must not be replaced when lost.
        n_replaced: Number of replacements since its last batch.
        sent_seq_no: Sequence number of the last weights sent to it.
        state: State from which a replacement would continue.
        state_number: Number of the call that `state` belongs to.
        num_env_runners: The option `num_env_runners` of its config.
    """

    index: int
    incarnation: int
    handle: Any = None
    start: HostReady | None = None
    was_ready: bool = False
    is_lost: bool = False
    is_leaving: bool = False
    n_replaced: int = 0
    sent_seq_no: int = NOTHING_SENT
    state: dict[str, Any] = field(default_factory=dict)
    state_number: int = -1
    num_env_runners: int = 0

    @property
    def t(self) -> int:
        """The last known time `t` of its exploration schedules."""
        return int(self.state.get(ENV_STEPS, 0)) * self.num_env_runners

    @property
    def is_ready(self) -> bool:
        """True if the runner can be called, as far as known."""
        return self.start is not None and not self.is_lost

    @property
    def whereabouts(self) -> str:
        """Process and machine of the runner as text for error notes; empty if unknown."""
        return "" if self.start is None else f" (pid {self.start.pid} on {self.start.node})"

    @property
    def connectors(self) -> dict[str, Any]:
        """Option -> last known connector state, for options whose connectors have state."""
        return {option: state for option in CONNECTOR_OPTIONS if (state := self.state.get(option))}

    @connectors.setter
    def connectors(self, state: dict[str, Any]) -> None:
        self.state = {**self.state, **state}

    def keep_state(self, state: dict[str, Any], number: int) -> None:
        """Keep the state sent to the runner by call `number`.

        Only the connectors and the env step count are kept: a replacement has different seeds and episodes.
        """
        self.state = {name: state[name] for name in (*CONNECTOR_OPTIONS, ENV_STEPS) if name in state}
        self.state_number = number

    def keep(self, reported: HostReport, number: int) -> None:
        """Keep the state received with a batch, unless a newer one is known.

        Connectors may have received a newer state before the batch was taken.
        """
        self.n_replaced = 0
        if number > self.state_number:
            self.state, self.state_number = reported.state, number

    def keep_connectors(self, state: dict[str, Any], number: int) -> None:
        """Keep the connector state sent to the runner by call `number`."""
        self.connectors, self.state_number = state, number
