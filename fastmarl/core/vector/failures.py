"""Handles failed envs, which raise an error, hang, or exit with their worker process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from fastmarl.core.errors.exits import as_error
from fastmarl.core.store.lanes import FAILED, TRUNCATED
from fastmarl.core.store.store import RowStore


class Failures:
    """Restarts failed envs and ends their episodes at the last recorded step.

    Args:
        counts: Counter to which "failures", "timeouts", "restarts" and "steps_discarded" are added.
        restart: True to recreate failed envs.
        max_restarts: Maximum number of consecutive restarts of an env without a successful step.
        keep_episodes: True to return the recorded part of the running episode.
    """

    _store: RowStore

    def __init__(self, counts: Counter[str], *, restart: bool, max_restarts: int, keep_episodes: bool):
        self._counts = counts
        self._restarts = restart
        self._max_restarts = max_restarts
        self._keeps_episodes = keep_episodes
        self._in_a_row: Counter[int] = Counter()

    def bind(self, store: RowStore) -> None:
        """Switch to this store, in which no env has been stepped yet."""
        self._store = store
        self._steps_at_restart: dict[int, int] = {}

    def restart(self, env_indices: Sequence[int], error: Exception, remake: Callable[[], None]) -> None:
        """Recreate envs that failed together.

        Args:
            env_indices: Indices of these envs.
            error: The error that the envs raised.
            remake: Function that recreates the envs; it is called again if it fails.

        Raises:
            Exception: `error`, or the last error of `remake`, if restarts are disabled or `max_restarts` is exceeded.
        """
        self._counts["failures"] += 1
        self._counts["timeouts"] += isinstance(error, TimeoutError)
        try:
            while self._may_restart(env_indices, error):
                try:
                    remake()
                    break
                except (Exception, SystemExit) as again:
                    error = as_error(again)
            else:
                raise error
        finally:
            del error  # its traceback holds this frame: they would keep each other alive
        self._counts["restarts"] += len(env_indices)

    def _may_restart(self, env_indices: Sequence[int], error: Exception) -> bool:
        if not self._restarts:
            return False
        for env_index in env_indices:
            n_steps = self._store.table.envs[env_index].n_steps
            if n_steps > self._steps_at_restart.get(env_index, -1):
                self._in_a_row[env_index] = 0
            self._in_a_row[env_index] += 1
            self._steps_at_restart[env_index] = n_steps
        if max(self._in_a_row[env_index] for env_index in env_indices) > self._max_restarts:
            error.add_note(f"fastmarl: gave up after restarting max_restarts={self._max_restarts} times in a row")
            return False
        return True

    def end_episode(self, env_index: int) -> int:
        """End the episode of the env at its last step; return the flags for `after_step`."""
        table = self._store.table
        made = table.envs[env_index].env_t - table.record(env_index).env_t_started
        is_kept = bool(made) and self._keeps_episodes
        self._store.take_back(env_index, entire_chunk=not is_kept)
        self._counts["steps_discarded"] += self._store.taken_back[0]
        if is_kept:
            self._store.scatter.interrupt(env_index)
            return FAILED | TRUNCATED
        return FAILED
