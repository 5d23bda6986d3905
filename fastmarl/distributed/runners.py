"""One runner of a fleet, as the fleet keeps it."""

from dataclasses import dataclass, field
from typing import Any

from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.distributed.host import ENV_STEPS, HostReady, HostReport

NOTHING_SENT = -1


@dataclass(eq=False)
class RemoteRunner:
    """What is known of a runner in an actor, also while it is being replaced.

    Attributes:
        index: from 0.
        incarnation: how many runners of this index there were before.
        handle: of its actor.
        start: what it told when it was made; None: it is being made.
        was_ready: whether one of this index has been made.
        is_lost: whether it is not there any more, and not replaced.
        is_leaving: whether it is not to be replaced if it is lost now.
        n_replaced: how often it was replaced since its last batch.
        sent_seq_no: of the weights that it was sent.
        state: what another runner would go on with, as of the call `state_number`.
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

    @property
    def is_ready(self) -> bool:
        """Whether it can be called, as far as is known."""
        return self.start is not None and not self.is_lost

    @property
    def whereabouts(self) -> str:
        """For a note: its process and machine, once they are known."""
        return "" if self.start is None else f" (pid {self.start.pid} on {self.start.node})"

    @property
    def connectors(self) -> dict[str, Any]:
        """The state of its connectors by option when that was last told, where they have one."""
        return {option: state for option in CONNECTOR_OPTIONS if (state := self.state.get(option))}

    @connectors.setter
    def connectors(self, state: dict[str, Any]) -> None:
        self.state = {**self.state, **state}

    def keep_state(self, state: dict[str, Any], number: int) -> None:
        """It goes on with this by the call of this number. Another one in its place has seeds and episodes of its own,
        so these are not kept."""
        self.state = {name: state[name] for name in (*CONNECTOR_OPTIONS, ENV_STEPS) if name in state}
        self.state_number = number

    def keep(self, told: HostReport, number: int) -> None:
        """Its call of this number has come to its end. Nothing older than what is known is taken: connectors may have
        been given a newer state while the batch was waiting."""
        self.n_replaced = 0
        if number > self.state_number:
            self.state, self.state_number = told.state, number

    def keep_connectors(self, state: dict[str, Any], number: int) -> None:
        """They are given this state by the call of this number."""
        self.connectors, self.state_number = state, number
