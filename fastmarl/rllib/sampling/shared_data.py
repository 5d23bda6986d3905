"""RLlib's `shared_data`, which connector pieces leave for one another, where pieces of the user's own may read it."""

from collections.abc import Hashable
from typing import Any

Mapped = dict[str, list[tuple[str, Hashable]]]
"""Module id -> (episode id, agent id) of the rows of its batch, in order."""


class SharedData:
    """Keeps it as RLlib's loop and its default pieces do.

    Args:
        runner: has it.
        is_read: whether anybody may read it; if not, it stays empty.
    """

    def __init__(self, runner: Any, *, is_read: bool):
        self._runner = runner
        self.is_read = is_read

    def reset(self) -> None:
        """Forget all of it, as RLlib does when it resets all envs."""
        self._runner._shared_data = {}

    def note_end(self, ended: str, begun: str) -> None:
        """An episode has ended, and another begun in its place; these are their ids."""
        if self.is_read:
            self._runner._shared_data["vector_env_episodes_map"][ended] = begun

    def note_actions(self) -> None:
        """Forget the ends of episodes, as agents have acted. Not to be called unless `is_read`."""
        self._runner._shared_data["vector_env_episodes_map"] = {}

    def note_batches(self, mapped: Mapped) -> None:
        """The modules' batches have these rows."""
        if self.is_read:
            if self._runner.module.is_stateful():
                self._runner._shared_data["_added_single_ts_time_rank"] = True
            self._runner._shared_data["memorized_map_structure"] = {key: list(rows) for key, rows in mapped.items()}
