"""Runs module-to-env pipelines with custom pieces, which receive the same batches as in the RLlib pipeline.

Most custom pieces are placed by `config.env_runners(module_to_env_connector=...)`, after
RemoveSingleTsTimeRankFromBatch, or before GetActions. Default RLlib pieces before and after these places are replaced
with operations on entire columns. If custom pieces are elsewhere, the RLlib pieces run as well.
"""

from collections.abc import Callable, Hashable
from copy import deepcopy
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Discrete
from ray.rllib.connectors import module_to_env
from ray.rllib.core.columns import Columns
from ray.rllib.utils.spaces.space_utils import clip_action, unsquash_action

from fastmarl.core.errors import ConnectorError
from fastmarl.core.store.block import Key, leaves_of, name_of
from fastmarl.rllib.connectors.pieces import MODULE_TO_ENV, own_of_module_to_env
from fastmarl.rllib.episodes.sample_block import nested_columns
from fastmarl.rllib.sampling.parts import Parts
from fastmarl.rllib.sampling.pieces_in_python import PiecesInPython
from fastmarl.rllib.sampling.shared_data import Mapped
from fastmarl.rllib.store.block import is_state

Answers = dict[str, dict[Key, np.ndarray]]
Given = dict[str, dict[str, list[Any]]]
"""Module id -> column name -> items."""
MISSING = object()
NUMBERS = "biufc"  # dtype kinds


class Acted(NamedTuple):
    """Actions of all agents: for each env, a dict of agent id -> action."""

    actions: list[dict]
    """Actions in stored form."""
    for_env: list[dict]
    """Actions in the form passed to envs."""


class ToEnv:
    """Runs the modules and the pieces of the module-to-env pipeline.

    Args:
        parts: Lanes, store, inference and settings of the runner.
        in_python: Calls pieces.

    Attributes:
        is_own: True if the pipeline has custom pieces.
        runs_as_one: True if modules must run through their methods, because pieces see all their outputs.
    """

    def __init__(self, parts: Parts, in_python: PiecesInPython):
        self._parts = parts
        self._in_python = in_python
        self._pieces = list(parts.internals.module_to_env.connectors)
        self.is_own = bool(own_of_module_to_env(self._pieces))
        kinds = [type(piece) for piece in self._pieces]
        self._n_head = kinds.index(MODULE_TO_ENV[0])
        n_known = self._n_head + MODULE_TO_ENV.index(module_to_env.NormalizeAndClipActions)
        self._is_usual = kinds[self._n_head : n_known] == MODULE_TO_ENV[:-2]  # True if this range has no custom pieces
        self.runs_as_one = self._n_head > 0 or not self._is_usual
        self._last = self._pieces[n_known:]
        self._by_columns: dict[type, Callable[[dict], dict]] = {
            module_to_env.NormalizeAndClipActions: self._normalize,
            module_to_env.ListifyDataForVectorEnv: self._listify,
        }
        self._structs = parts.action_structs

    def act(self, batches: dict[str, Any], mapped: Mapped, *, explore: bool, t: int) -> Acted:
        """Choose the actions of all agents and store the outputs.

        Args:
            batches: See `ExactInference.answer()`.
            mapped: Agents of the batch rows.
            explore, t: See `ExactInference.answer()`.
        """
        inference, answers, given = self._parts.inference, None, Given()
        if self.runs_as_one:
            batch = self._run(self._pieces[: self._n_head], inference.forward(batches, explore=explore, t=t))
            if self._is_usual and self._is_regular(batch, mapped):
                answers = inference.act(batch, explore=explore)
            else:
                batch = self._run(self._pieces[self._n_head :], batch)
        else:
            answers = inference.answer(batches, explore=explore, t=t)
        if answers is not None:
            batch, given = self._items(answers, mapped)
            batch = self._run(self._last, batch)
        actions = batch.pop(Columns.ACTIONS, [{} for _ in self._parts.table.envs])
        for_env = batch.pop(Columns.ACTIONS_FOR_ENV, actions)
        self._record({Columns.ACTIONS: actions, **batch}, answers or {}, given)
        return Acted(actions, for_env)

    def _is_regular(self, batch: dict, mapped: Mapped) -> bool:
        """Return True if the batch has outputs of each module, with a time axis if the module is recurrent."""
        modules = self._parts.runner.module
        return batch.keys() == mapped.keys() and all(
            len(getattr(leaf, "shape", ())) > 1
            for module_id, columns in batch.items()
            if modules[module_id].is_stateful()
            for key, leaf in leaves_of(columns).items()
            if not is_state(key)
        )

    def _run(self, pieces: list[Any], batch: dict) -> dict:
        for piece in pieces:
            by_columns = self._by_columns.get(type(piece)) if self._is_usual else None
            if by_columns is not None:
                batch = by_columns(batch)
            elif type(piece) in MODULE_TO_ENV:
                batch = self._in_python.call_default(piece, batch)
            else:
                batch = self._in_python.call(piece, batch, has_ended=False)
        return batch

    # Replacements of default RLlib pieces.

    def _items(self, answers: Answers, mapped: Mapped) -> tuple[dict, Given]:
        """Build the RLlib batch without time axes: column -> (episode id, agent id, module id) -> [item]."""
        batch: dict[str, dict] = {}
        given: Given = {}
        for module_id, leaves in answers.items():
            keys = [(episode_id, agent_id, module_id) for episode_id, agent_id in mapped[module_id]]
            is_boxed = self._parts.runner.module[module_id].is_stateful()
            items_of = given[module_id] = {}
            for name, column in nested_columns(leaves).items():
                items_of[name] = items = _rows(column, is_boxed and name != Columns.STATE_OUT)
                batch.setdefault(name, {}).update(zip(keys, ([item] for item in items), strict=True))
        return batch, given

    def _normalize(self, batch: dict) -> dict:
        """Scale or clip actions like NormalizeAndClipActions; add the start of Discrete spaces if requested (28)."""
        options = self._parts.action_options
        if not any(options.values()):
            return batch
        change = unsquash_action if options["normalize"] else clip_action if options["clip"] else None
        starts = options["adds_start"]

        def for_env(item: Any, agent_id: Hashable) -> Any:
            struct = self._structs[agent_id]
            if isinstance(struct, Discrete) and not isinstance(item, np.ndarray):  # nothing to scale, and immutable
                return np.add(item, struct.start, dtype=np.asarray(item).dtype) if starts else item
            if isinstance(struct, Discrete) and starts:
                return np.array(item + item.dtype.type(struct.start))
            return deepcopy(item) if change is None else change(deepcopy(item), struct)

        batch[Columns.ACTIONS_FOR_ENV] = {
            key: [for_env(item, key[1]) for item in items] for key, items in batch[Columns.ACTIONS].items()
        }
        return batch

    def _listify(self, batch: dict) -> dict:
        """For each column, return a list with a dict (agent id -> item) per env, as ListifyDataForVectorEnv does."""
        place_of = {record.id_: place for place, record in reversed([*enumerate(self._parts.running())])}
        for column, by_key in batch.items():
            by_env: list[dict] = [{} for _ in self._parts.table.envs]
            for (episode_id, agent_id, _), items in by_key.items():
                (item,) = items
                by_env[place_of.get(episode_id, 0)][agent_id] = item
            batch[column] = by_env
        return batch

    # Storing outputs.

    def _record(self, columns: dict[str, list[dict]], answers: Answers, given: Given) -> None:
        """Store the outputs of the pipeline.

        Args:
            columns: Column name -> for each env, a dict of agent id -> item.
            answers: Module outputs before the pipeline, as arrays [rows, ...]; stored for columns that did not change.
            given: The same outputs as items, to detect changes.
        """
        store, table = self._parts.store, self._parts.table
        order, n_left = store.scatter.acting_modules(store.acting_from), sum(map(len, columns[Columns.ACTIONS]))
        for module in order:
            module_id, first = store.module_ids[module], store.acting_from[module]
            lanes = store.blocks[module].lane_R[first : store.rows[module].n]
            who = [(table.env_L[lane], table.agent_ids[lane]) for lane in lanes.tolist()]
            items = {}
            for name, by_env in columns.items():
                values = [by_env[env_index].get(agent_id, MISSING) for env_index, agent_id in who]
                if any(value is not MISSING for value in values):
                    items[name] = values
            if any(value is MISSING for value in items.get(Columns.ACTIONS, [MISSING])):
                raise self._wrong_agents(module_id, "an action for each observed agent")
            n_left -= len(who)
            self._record_module(module, lanes, items, answers.get(module_id, {}), given.get(module_id, {}))
        if n_left:
            raise self._wrong_agents(store.module_ids[order[0]], "actions only for observed agents")

    def _wrong_agents(self, module_id: str, expected: str) -> ConnectorError:
        names = ", ".join(type(piece).__name__ for piece in own_of_module_to_env(self._pieces))
        problem = f"expected {expected}; to pass other actions to an env, set {Columns.ACTIONS_FOR_ENV!r}"
        return ConnectorError(module_id, names, problem)

    def _record_module(
        self,
        module: int,
        lanes: np.ndarray,
        items: dict[str, list[Any]],
        answers: dict[Key, np.ndarray],
        given: dict[str, list[Any]],
    ) -> None:
        store, state = self._parts.store, self._parts.states[module]
        block, first = store.blocks[module], store.acting_from[module]
        columns: dict[Key, np.ndarray] | None = {}
        for name, values in items.items():
            if len(given.get(name, ())) == len(values) and all(map(is_, values, given[name])):
                made: Any = {key: column for key, column in answers.items() if name_of(key) == name}
            else:
                made = _columns_of(name, values, state is not None)
            columns = None if made is None or columns is None else columns | made
        if columns is not None and not block.is_by_items(first):
            if state is not None:
                state.write(lanes, columns, store.module_ids[module])
            block.boxes_scalars = state is not None
            store.record(module, columns)
            return
        rows = [_outputs(items, i) for i in range(len(lanes))]
        if state is not None:
            states = {key: np.stack([row[key] for row in rows]) for key in rows[0] if is_state(key)}
            state.write(lanes, states, store.module_ids[module])
        block.record_items(first, rows)


def _rows(column: Any, is_boxed: bool) -> list[Any]:
    """Return the rows of a nest of arrays as views; numbers are arrays of shape () if `is_boxed`."""
    if isinstance(column, dict):
        columns = [_rows(part, is_boxed) for part in column.values()]
        return [dict(zip(column, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(column, tuple):
        return list(zip(*(_rows(part, is_boxed) for part in column), strict=True))
    return [column[i, ...] for i in range(len(column))] if is_boxed else list(column)


def _outputs(items: dict[str, list[Any]], i: int) -> dict[Key, Any]:
    """Copy the items of row i, leaf by leaf."""
    leaves = leaves_of({name: values[i] for name, values in items.items() if values[i] is not MISSING})
    return {key: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for key, leaf in leaves.items()}


def _columns_of(name: str, values: list[Any], is_boxed: bool) -> dict[Key, np.ndarray] | None:
    """Stack items into columns, leaf by leaf; return None if they differ in structure, type, dtype or shape."""
    if any(value is MISSING for value in values):
        return None
    rows = [leaves_of({name: value}) for value in values]
    if any(row.keys() != rows[0].keys() for row in rows):
        return None
    columns = {key: _column([row[key] for row in rows], is_boxed and not is_state(key)) for key in rows[0]}
    return None if any(column is None for column in columns.values()) else columns  # type: ignore[return-value]


def _column(items: list[Any], is_boxed: bool) -> np.ndarray | None:
    first = items[0]
    if any(type(item) is not type(first) for item in items):
        return None
    if isinstance(first, np.ndarray):
        alike = all(item.dtype == first.dtype and item.shape == first.shape for item in items)
        return np.stack(items) if alike and first.dtype.kind in NUMBERS and (first.ndim or is_boxed) else None
    return np.array(items) if isinstance(first, np.generic) and not is_boxed and first.dtype.kind in NUMBERS else None
