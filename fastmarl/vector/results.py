"""What an env's reset() has returned, to the store."""

from typing import Any

from fastmarl.envs.form import check_reset_result
from fastmarl.store import EpisodeStore


def write_reset(store: EpisodeStore, env_index: int, result: Any, unchecked: set[int]) -> None:
    """Write first observations; those of envs in `unchecked` are looked at closely before, once.

    Raises:
        MultiAgentEnvError: and its kinds; this is no result of reset().
    """
    if env_index in unchecked:
        check_reset_result(result, env_index)
        unchecked.discard(env_index)
    try:
        store.scatter.write_reset(env_index, *result)
    except TypeError:
        check_reset_result(result, env_index)
        raise
