"""Base class of all vectors of envs, and the parts of the runner used by them."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from fastmarl.core.connectors.env_actions import EnvActions
from fastmarl.core.store.agent_spaces import AgentSpaces
from fastmarl.core.store.env_states import EnvStates
from fastmarl.core.store.store import RowStore
from fastmarl.core.vector.failures import Failures
from fastmarl.core.vector.seeds import ResetSeeds

AfterStep = Callable[[list[int], list[int]], None]  # env indices, flags of `__all__`; called after steps were recorded


@dataclass(frozen=True, kw_only=True)
class VectorParts:
    """Parts of a runner used by its vector of envs.

    Attributes:
        seeds: Seeds of the resets.
        store: Receives the steps of the envs.
        agent_spaces: Spaces of all joined agents.
        env_actions: Sources of actions, per module; may grow.
        seconds: Dict to which times are added under "timed_env", "timed_scatter" and "timed_send".
        check: True if the first results of each env are checked in detail.
        env_states: Recorders of global states, per env; empty if states are not recorded.
        failures: Handles failing envs.
        num_splits: Number of alternating parts: one is stepped while the actions for the next are chosen.
        batch_size: Minimum number of envs per turn, which are then the first ready envs; None to step entire parts.
    """

    seeds: ResetSeeds
    store: RowStore
    agent_spaces: AgentSpaces
    env_actions: list[EnvActions]
    seconds: defaultdict[str, float]
    check: bool
    env_states: Sequence[EnvStates]
    failures: Failures
    num_splits: int
    batch_size: int | None


class VectorEnv:
    """Attributes of every vector of envs that callbacks may use, as in RLlib.

    Attributes:
        envs: The envs, or the batches of them.
        num_envs: Number of envs, including those in batches.
    """

    envs: Sequence[Any]
    num_envs: int

    @property
    def unwrapped(self) -> Self:
        """The vector itself, because it has no wrappers; each of its envs has an `unwrapped` of its own."""
        return self
