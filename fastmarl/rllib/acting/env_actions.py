"""Actions as RLlib hands them to envs: unsquashed or clipped per agent, as NumPy scalars and arrays."""

from collections.abc import Callable, Hashable
from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.utils.spaces.space_utils import clip_action, unsquash_action

from fastmarl.native._actions import ModuleActions
from fastmarl.record.block import Key, _nested


class RLlibEnvActions:
    """One module's actions in the form `_actions.ActionDicts` reads. What an env gets is its own copy.

    Args:
        structs: agent id -> its action space's struct, as NormalizeAndClipActions has it.
        normalize, clip: RLlib's options; normalize wins.
        adds_start: whether Discrete actions begin with their space's start (28).
        boxed: whether scalars come as arrays of shape (), as RLlib has them from modules with recurrent state.
    """

    def __init__(self, structs: dict[Hashable, Any], *, normalize: bool, clip: bool, adds_start: bool, boxed: bool):
        self._boxed = boxed
        self._adds_start = adds_start
        self.rows = ModuleActions()
        self._structs = structs
        self._change = unsquash_action if normalize else clip_action if clip else None
        self._known: set[Hashable] = set()
        self._common: Any = None  # the struct that all the module's agents have, if they have one

    def add_agent(self, agent_id: Hashable) -> None:
        """An agent of this module joins."""
        if agent_id not in self._known:
            struct = self._structs.get(agent_id)
            is_common = isinstance(struct, gym.Space) and (not self._known or struct == self._common)
            self._common = struct if is_common else None
            self._known.add(agent_id)

    def set(self, first: int, outputs: dict[Key, np.ndarray], agents: Callable[[], list[Hashable]]) -> None:
        """Take the actions of the rows from `first` on; `agents` says whose they are, if their spaces differ."""
        column = outputs.get("actions")
        if column is not None and self._adds_start and isinstance(self._common, gym.spaces.Discrete):
            self._set_column(first, column + column.dtype.type(self._common.start))
        elif column is None:
            self._set_nested(first, outputs, agents)
        elif self._change is None or isinstance(self._common, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
            self._set_column(first, column)
        elif isinstance(self._common, gym.spaces.Box):
            self._set_column(first, np.asarray(self._change(column, self._common)))
        else:
            self._set_items(first, [self._item(column, i) for i in range(len(column))], agents)

    def _set_column(self, first: int, column: np.ndarray) -> None:
        if column.ndim == 1 and self._boxed:
            self.rows.set_values(first, [self._item(column, i) for i in range(len(column))])
        elif column.ndim == 1:
            self.rows.set_values(first, list(column))
        else:
            self.rows.set_arrays(first, np.ascontiguousarray(column))

    def _set_nested(self, first: int, outputs: dict[Key, np.ndarray], agents: Callable[[], list[Hashable]]) -> None:
        columns = {
            key[1:]: column for key, column in outputs.items() if not isinstance(key, str) and key[0] == "actions"
        }
        n = len(next(iter(columns.values())))
        items = [_nested({path: self._item(column, i) for path, column in columns.items()}) for i in range(n)]
        self._set_items(first, items, agents)

    def _set_items(self, first: int, items: list[Any], agents: Callable[[], list[Hashable]]) -> None:
        change, structs = self._change, self._structs
        if change is not None:
            items = [change(item, structs[agent_id]) for item, agent_id in zip(items, agents(), strict=True)]
        self.rows.set_values(first, items)

    def _item(self, column: np.ndarray, i: int) -> Any:
        return np.array(column[i]) if column.ndim > 1 or self._boxed else column[i]
