"""RLlib's `shared_data`, through which connector pieces exchange data, for custom pieces that may read it."""

from collections.abc import Hashable
from typing import Any

from fastmarl.rllib.sampling.internals import SHARED, Internals

Mapped = dict[str, list[tuple[str, Hashable]]]
"""Module id -> (episode id, agent id) of each row of its batch."""


class SharedData:
    """Updates `shared_data` of the runner like the RLlib loop and its default pieces.

    Args:
        internals: The RLlib runner.
        is_read: True if a piece may read the data; otherwise it remains empty.
    """

    def __init__(self, internals: Internals, *, is_read: bool):
        self._internals = internals
        self.is_read = is_read

    @property
    def content(self) -> Any:
        """The data: a dict, or None before the first reset."""
        return self._internals.loop[SHARED]

    def reset(self) -> None:
        """Clear the data, as in RLlib when all envs are reset."""
        self._internals.loop[SHARED] = {}

    def note_end(self, ended: str, begun: str) -> None:
        """Store the ids of a finished episode and of its successor."""
        if self.is_read:
            self.content["vector_env_episodes_map"][ended] = begun

    def note_actions(self) -> None:
        """Clear the episode ends after agents have acted. Call only if `is_read`."""
        self.content["vector_env_episodes_map"] = {}

    def note_batches(self, mapped: Mapped) -> None:
        """Store the rows of the module batches."""
        if self.is_read:
            if self._internals.runner.module.is_stateful():
                self.content["_added_single_ts_time_rank"] = True
            self.content["memorized_map_structure"] = {key: list(rows) for key, rows in mapped.items()}
