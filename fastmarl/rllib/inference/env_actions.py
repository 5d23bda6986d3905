"""Converts actions to the form in which RLlib passes them to envs: unsquashed or clipped scalars and arrays."""

from collections.abc import Callable, Hashable
from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.utils.spaces.space_utils import clip_action, unsquash_action

from fastmarl.core.native._actions import ModuleActions
from fastmarl.core.nets.output_checks import ACTIONS
from fastmarl.core.spaces.structs import Index, Path, flatten_struct
from fastmarl.core.store.block import Key


class RLlibEnvActions:
    """Actions of a module in the form read by `_actions.ActionDicts`. Envs get copies.

    Args:
        structs: Agent id -> struct of its action space, as in NormalizeAndClipActions.
        normalize, clip: RLlib options; `normalize` takes precedence.
        adds_start: Add the start of Discrete spaces to actions (28).
        boxed: Pass scalars as arrays of shape (), like RLlib for modules with recurrent state.
    """

    def __init__(self, structs: dict[Hashable, Any], *, normalize: bool, clip: bool, adds_start: bool, boxed: bool):
        self._boxed = boxed
        self._adds_start = adds_start
        self.rows = ModuleActions()
        self._structs = structs
        self._change = unsquash_action if normalize else clip_action if clip else None
        self._known: set[Hashable] = set()
        self._spaces: dict[Path, Any] = {}  # leaves of the struct, if equal for all agents of the module
        self._keeps_scalars = False  # True if envs get scalar actions unchanged

    def add_agent(self, agent_id: Hashable) -> None:
        """Add an agent controlled by this module."""
        if agent_id not in self._known:
            spaces = dict(flatten_struct(self._structs.get(agent_id, {})))
            if not self._known:
                self._spaces = spaces
            elif not _are_equal(self._spaces, spaces):
                self._spaces = {}
            self._known.add(agent_id)
            common = self._spaces.get(())
            is_shifted = self._adds_start and isinstance(common, gym.spaces.Discrete)
            is_changed = self._change is not None and (common is None or isinstance(common, gym.spaces.Box))
            self._keeps_scalars = not is_shifted and not is_changed

    def set(self, first: int, outputs: dict[Key, np.ndarray], agents: Callable[[], list[Hashable]]) -> None:
        """Set the actions of the rows from `first` onward; `agents()` returns their agent ids."""
        column = outputs.get(ACTIONS)
        if column is not None and column.ndim == 1 and self._keeps_scalars:
            self.rows.set_values(first, _values(column, self._boxed))
            return
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
        """Convert entire columns for envs, or return None if rows must be converted one by one."""
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
        """Return the rows of a leaf; NumPy arithmetic has turned arrays of shape () into scalars."""
        is_computed = changed is not raw and isinstance(self._spaces[path], gym.spaces.Box)
        return _values(changed, self._boxed and not is_computed)

    def _changed_rows(self, rows: list[Any], agent_ids: list[Hashable]) -> list[Any]:
        """Convert each action according to the action space of its agent."""
        change, structs = self._change, self._structs
        assert change is not None
        return [change(row, structs[agent_id]) for row, agent_id in zip(rows, agent_ids, strict=True)]


def _nested_columns(outputs: dict[Key, np.ndarray]) -> dict[Path, np.ndarray]:
    """Return path -> column of nested actions."""
    return {key[1:]: column for key, column in outputs.items() if not isinstance(key, str) and key[0] == ACTIONS}


def _values(column: np.ndarray, boxed: bool) -> list[Any]:
    """Return copies of the rows of a column."""
    if column.ndim > 1:
        return list(np.array(column))
    return [np.array(value) for value in column] if boxed else list(column)


def _nested_rows(values: dict[Path, list[Any]]) -> list[Any]:
    """Nest the values of each row by their paths."""
    if list(values) == [()]:
        return values[()]
    parts: dict[Any, dict[Path, list[Any]]] = {}
    for path, each in values.items():
        parts.setdefault(path[0], {})[path[1:]] = each
    nested = {key: _nested_rows(part) for key, part in parts.items()}
    if all(type(key) is Index for key in nested):
        empty = [()] * len(next(iter(values.values())))  # for tuple elements without leaves
        return list(zip(*(nested.get(i, empty) for i in range(1 + max(nested))), strict=True))
    return [dict(zip(nested, row, strict=True)) for row in zip(*nested.values(), strict=True)]


def _are_equal(spaces: dict[Path, Any], others: dict[Path, Any]) -> bool:
    """Return True if both convert actions alike, with exactly equal bounds; Gymnasium's == accepts close bounds."""
    return spaces.keys() == others.keys() and all(
        space == others[path] and (not isinstance(space, gym.spaces.Box) or _bounds(space) == _bounds(others[path]))
        for path, space in spaces.items()
    )


def _bounds(space: gym.spaces.Box) -> tuple[bytes, bytes]:
    return space.low.tobytes(), space.high.tobytes()
