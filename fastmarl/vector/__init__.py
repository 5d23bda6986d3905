"""Many envs behind one interface.

Imports are inside, since worker processes import this package, and do without torch and numba.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastmarl.vector.arrays.vector import ArrayVector, SplitArrayVector
    from fastmarl.vector.inprocess import InProcessVector
    from fastmarl.vector.wiring import VectorParts
    from fastmarl.vector.workers.process import EnvWorkers
    from fastmarl.vector.workers.vector import ProcessVector


def make_vector(
    envs: list[Any] | EnvWorkers, parts: VectorParts, remake: Callable[[int], None]
) -> InProcessVector | ArrayVector | SplitArrayVector | ProcessVector:
    """What steps these envs: single ones, batches of them, or those in worker processes.

    `remake` makes the env of an index anew, in its place in `envs`.
    """
    from fastmarl.envs.arrays import ArrayEnv
    from fastmarl.vector.arrays.vector import ArrayVector, SplitArrayVector
    from fastmarl.vector.inprocess import InProcessVector, SplitVector
    from fastmarl.vector.workers.vector import ProcessVector

    if not isinstance(envs, list):
        return ProcessVector(envs, parts)
    if isinstance(envs[0], ArrayEnv):
        return ArrayVector(envs[0], parts) if len(envs) == 1 else SplitArrayVector(envs, parts)
    if parts.num_splits > 1:
        return SplitVector(envs, parts, remake, parts.num_splits)
    return InProcessVector(envs, parts, remake)
