"""Actions as RLlib hands them to envs: unsquashed or clipped per agent, as NumPy scalars and arrays."""

from collections.abc import Callable, Hashable
from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.utils.spaces.space_utils import clip_action, unsquash_action

from fastmarl.core.inference.output_checks import ACTIONS
from fastmarl.core.native._actions import ModuleActions
from fastmarl.core.spaces.structs import Index, Path, flatten_struct
from fastmarl.core.store.block import Key


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
        self._spaces: dict[Path, Any] = {}  # leaves of the struct, if it is the same for all the module's agents

    def add_agent(self, agent_id: Hashable) -> None:
        """An agent of this module joins."""
        if agent_id not in self._known:
            spaces = dict(flatten_struct(self._structs.get(agent_id, {})))
            if not self._known:
                self._spaces = spaces
            elif not _are_equal(self._spaces, spaces):
                self._spaces = {}
            self._known.add(agent_id)

    def set(self, first: int, outputs: dict[Key, np.ndarray], agents: Callable[[], list[Hashable]]) -> None:
        """Take the actions of the rows from `first` on; `agents` says whose they are, if their spaces differ."""
        column = outputs.get(ACTIONS)
        columns = {(): column} if column is not None else _nested_columns(outputs)
        changed = self._changed_columns(columns)
        if changed is None:
            rows = _nested_rows({path: _values(column, self._boxed) for path, column in columns.items()})
            self.rows.set_values(first, self._changed_rows(rows, agents()))
        elif () in changed and changed[()].ndim > 1:
            self.rows.set_arrays(first, np.ascontiguousarray(changed[()]))
        else:
            values = {path: self._changed_values(path, columns[path], column) for path, column in changed.items()}
            self.rows.set_values(first, _nested_rows(values))

    def _changed_columns(self, columns: dict[Path, np.ndarray]) -> dict[Path, np.ndarray] | None:
        """Columns as envs are to get them; None if each row has to be looked at."""
        common = self._spaces.get(())
        if self._adds_start and isinstance(common, gym.spaces.Discrete) and () in columns:
            return {(): columns[()] + columns[()].dtype.type(common.start)}
        if self._change is None:
            return columns
        if columns.keys() != self._spaces.keys():
            return None
        changed = {}
        for path, column in columns.items():
            space = self._spaces[path]
            if not isinstance(space, gym.spaces.Box):
                changed[path] = column
            elif column.shape[1:] == space.shape:
                changed[path] = np.asarray(self._change(column, space))
            else:
                return None
        return changed

    def _changed_values(self, path: Path, raw: np.ndarray, changed: np.ndarray) -> list[Any]:
        """Each row's part of the actions; of arrays of shape (), NumPy's arithmetic makes scalars."""
        is_computed = changed is not raw and isinstance(self._spaces[path], gym.spaces.Box)
        return _values(changed, self._boxed and not is_computed)

    def _changed_rows(self, rows: list[Any], agent_ids: list[Hashable]) -> list[Any]:
        """Each agent's action by its own space."""
        change, structs = self._change, self._structs
        assert change is not None
        return [change(row, structs[agent_id]) for row, agent_id in zip(rows, agent_ids, strict=True)]


def _nested_columns(outputs: dict[Key, np.ndarray]) -> dict[Path, np.ndarray]:
    """Those of actions in parts, by the parts' paths."""
    return {key[1:]: column for key, column in outputs.items() if not isinstance(key, str) and key[0] == ACTIONS}


def _values(column: np.ndarray, boxed: bool) -> list[Any]:
    """Copies of a column's rows."""
    if column.ndim > 1:
        return list(np.array(column))
    return [np.array(value) for value in column] if boxed else list(column)


def _nested_rows(values: dict[Path, list[Any]]) -> list[Any]:
    """Each row's values, nested as their paths say."""
    if list(values) == [()]:
        return values[()]
    parts: dict[Any, dict[Path, list[Any]]] = {}
    for path, each in values.items():
        parts.setdefault(path[0], {})[path[1:]] = each
    nested = {key: _nested_rows(part) for key, part in parts.items()}
    if all(type(key) is Index for key in nested):
        empty = [()] * len(next(iter(values.values())))  # parts of tuples that have no leaves
        return list(zip(*(nested.get(i, empty) for i in range(1 + max(nested))), strict=True))
    return [dict(zip(nested, row, strict=True)) for row in zip(*nested.values(), strict=True)]


def _are_equal(spaces: dict[Path, Any], others: dict[Path, Any]) -> bool:
    """Whether actions are changed in the same way for both; Gymnasium's boxes are equal if their bounds are close."""
    return spaces.keys() == others.keys() and all(
        space == others[path] and (not isinstance(space, gym.spaces.Box) or _bounds(space) == _bounds(others[path]))
        for path, space in spaces.items()
    )


def _bounds(space: gym.spaces.Box) -> tuple[bytes, bytes]:
    return space.low.tobytes(), space.high.tobytes()
