"""What every vector of envs works with."""

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

AfterStep = Callable[[list[int], list[int]], None]  # env indices, flags of `__all__`: these envs' steps are recorded


@dataclass(frozen=True, kw_only=True)
class VectorParts:
    """A runner's parts between which a vector stands.

    Attributes:
        seeds: of the envs' resets.
        store: where steps go to.
        agent_spaces: of the agents that have joined.
        env_actions: where actions come from, by module index; may get longer.
        seconds: takes "timed_env", "timed_scatter" and "timed_send".
        check: whether each env's first results are checked in detail.
        env_states: per env, what records its global states; empty: nothing does.
        failures: what is done about envs that fail.
        num_splits: so many parts take turns: one is stepped while another's actions are chosen.
        batch_size: whichever envs are ready first take their turn, so many at least. None: a part at a time.
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
    """Attributes that callbacks find in every vector of envs, as in RLlib's.

    Attributes:
        envs: the envs, or the batches of them.
        num_envs: the envs, also those in batches.
    """

    envs: Sequence[Any]
    num_envs: int

    @property
    def unwrapped(self) -> Self:
        """Itself: a vector has no wrappers. Its envs have an `unwrapped` of their own."""
        return self
