"""Base class of all vectors of envs, and the parts of the runner that they use."""

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
        check: True to check the first results of each env in detail.
        env_states: Recorders of global states, per env; empty if states are not recorded.
        failures: Handles failing envs.
        num_splits: Number of alternating parts: one is stepped while the actions for the next are chosen.
        batch_size: Minimum number of envs per turn, whichever are ready first; None to step entire parts.
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
    """Base class of all vectors of envs, with the attributes that callbacks may use, as in RLlib.

    Attributes:
        envs: The envs, or the batches of envs.
        num_envs: Number of envs, including those in batches.
    """

    envs: Sequence[Any]
    num_envs: int

    @property
    def unwrapped(self) -> Self:
        """The vector itself, because it has no wrappers; each env has its own `unwrapped`."""
        return self
