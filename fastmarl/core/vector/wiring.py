"""Base class of all vectors of envs, and the runner's parts that they use."""

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
    """Parts of a runner that its vector of envs works with.

    Attributes:
        seeds: Seeds of the envs' resets.
        store: Receives the envs' steps.
        agent_spaces: Spaces of the agents that have joined.
        env_actions: Sources of actions by module index; may grow.
        seconds: Times under "timed_env", "timed_scatter" and "timed_send" are added here.
        check: True if the first results of each env are checked in detail.
        env_states: Recorders of global states by env; empty: states are not recorded.
        failures: Handles envs that fail.
        num_splits: Number of parts that take turns: one is stepped while another's actions are chosen.
        batch_size: Least number of envs in a turn, which those take that are ready first. None: turns of whole parts.
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
    """Attributes of every vector of envs that callbacks may use, as in RLlib's.

    Attributes:
        envs: The envs, or the batches of them.
        num_envs: Number of envs, including those in batches.
    """

    envs: Sequence[Any]
    num_envs: int

    @property
    def unwrapped(self) -> Self:
        """The vector itself, which has no wrappers. Each of its envs has its own `unwrapped`."""
        return self
