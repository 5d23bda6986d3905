"""Many envs behind one interface.

Imports are inside, since worker processes import this package, and do without torch and numba.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastmarl.env_actions import EnvActions
    from fastmarl.env_states import EnvStates
    from fastmarl.store import EpisodeStore
    from fastmarl.vector.arrays import ArrayVector
    from fastmarl.vector.failures import Failures
    from fastmarl.vector.inprocess import InProcessVector
    from fastmarl.vector.parallel import ProcessVector
    from fastmarl.vector.processes import EnvWorkers


def make_vector(
    envs: list[Any] | EnvWorkers,
    seeds: list[int | None],
    store: EpisodeStore,
    env_actions: list[EnvActions],
    seconds: defaultdict[str, float],
    *,
    check: bool,
    env_states: Sequence[EnvStates],
    failures: Failures,
    remake: Callable[[int], None],
) -> InProcessVector | ArrayVector | ProcessVector:
    """What steps these envs: single ones, one batch of them, or those in worker processes.

    `remake` makes the env of an index anew, in its place in `envs`.
    """
    from fastmarl.envs.arrays import ArrayEnv
    from fastmarl.vector.arrays import ArrayVector
    from fastmarl.vector.inprocess import InProcessVector
    from fastmarl.vector.parallel import ProcessVector

    if not isinstance(envs, list):
        return ProcessVector(envs, seeds, store, env_actions, seconds, check, env_states, failures)
    if isinstance(envs[0], ArrayEnv):
        return ArrayVector(envs[0], seeds, store, env_actions, seconds, env_states)
    return InProcessVector(envs, seeds, store, env_actions, seconds, check, env_states, failures, remake)
