"""Many envs behind one interface."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fastmarl.env_actions import EnvActions
from fastmarl.env_states import EnvStates
from fastmarl.envs.arrays import ArrayEnv
from fastmarl.store import EpisodeStore
from fastmarl.vector.arrays import ArrayVector
from fastmarl.vector.inprocess import InProcessVector


def make_vector(
    envs: list[Any],
    seeds: list[int | None],
    store: EpisodeStore,
    env_actions: list[EnvActions],
    seconds: defaultdict[str, float],
    *,
    check: bool,
    env_states: Sequence[EnvStates],
) -> InProcessVector | ArrayVector:
    """What steps these envs: single ones, or one batch of them."""
    if isinstance(envs[0], ArrayEnv):
        return ArrayVector(envs[0], seeds, store, env_actions, seconds, env_states)
    return InProcessVector(envs, seeds, store, env_actions, seconds, check, env_states)
