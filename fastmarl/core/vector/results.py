"""Writing of an env's reset() and step() results to the store."""

from typing import Any

from fastmarl.core.envs.form import check_reset_result, check_step_result
from fastmarl.core.store.store import RowStore


def write_reset(store: RowStore, env_index: int, result: Any, unchecked: set[int]) -> None:
    """Write first observations; check them in detail once for each env in `unchecked`.

    Raises:
        MultiAgentEnvError: If `result` is not a valid result of reset().
    """
    if env_index in unchecked:
        check_reset_result(result, env_index)
        unchecked.discard(env_index)
    try:
        store.scatter.write_reset(env_index, *result)
    except TypeError:
        check_reset_result(result, env_index)
        raise


def write_step(store: RowStore, env_index: int, result: Any, unchecked: set[int]) -> int:
    """Write a step; check the first one in detail for each env in `unchecked`.

    Returns:
        The flags of `__all__`, see Scatter.write_step().

    Raises:
        MultiAgentEnvError: If `result` is not a valid result of step().
    """
    env_t = store.table.envs[env_index].env_t + 1
    if env_index in unchecked:
        check_step_result(result, env_index, env_t)
        unchecked.discard(env_index)
    try:
        return store.scatter.write_step(env_index, *result)
    except TypeError:
        check_step_result(result, env_index, env_t)
        raise
