"""Adds the results of custom connector pieces to the module batches.

RLlib runs its env-to-module pipeline after the env step. Pieces before the default ones receive an empty batch, and
the data they add goes through the default RLlib pieces. Pieces after the default ones see the module batches.
"""

from collections.abc import Hashable
from typing import Any

from ray.rllib.core.columns import Columns

from fastmarl.core.errors import ConnectorError
from fastmarl.rllib.connectors.pieces import EnvToModuleParts
from fastmarl.rllib.inference.inference import Batch
from fastmarl.rllib.sampling.module_inputs import ModuleInputs
from fastmarl.rllib.sampling.parts import Parts
from fastmarl.rllib.sampling.pieces_in_python import PiecesInPython
from fastmarl.rllib.sampling.shared_data import Mapped

MADE_OF_EPISODES = {Columns.OBS, Columns.STATE_IN}
"""Columns that default RLlib pieces do not overwrite if another piece has added them."""


class ToModule:
    """Builds the module batches if custom pieces are involved.

    Args:
        parts: Lanes, store, inference and settings of the runner.
        inputs: Builds batches, including the columns added by pieces.
        in_python: Calls pieces.

    Attributes:
        batches: Batches of the modules that act next, or None if `inputs` builds them.
        mapped: Agents of the batch rows.
        is_reordered: True if the batch rows are not in the order of the stored rows.
    """

    def __init__(self, parts: Parts, inputs: ModuleInputs, in_python: PiecesInPython):
        self._parts = parts
        self._inputs = inputs
        self._in_python = in_python
        self.batches: dict[str, Any] | None = None
        self.mapped: Mapped = {}
        self.is_reordered = False

    @property
    def _pieces(self) -> EnvToModuleParts:
        return self._parts.to_module

    def pass_ended(self) -> None:
        """Run the last pieces for finished episodes, whose agents no longer act."""
        self._parts.shared_data.note_batches({})
        self._run_last({}, has_ended=True)

    def take(self, batch: dict[str, Any]) -> None:
        """Process the batch returned by the pieces before the default ones."""
        parts, ids = self._parts, self._parts.store.module_ids
        rows = parts.rows_to_act()
        self._inputs.added, self.batches, self.mapped = {}, None, rows
        if batch.keys() & MADE_OF_EPISODES or any(column in parts.runner.module for column in batch):
            self.batches = self._run_default(batch)
        elif batch:
            self._inputs.added = self._default_columns(batch, rows)
        else:
            parts.shared_data.note_batches(rows)
        if batch:
            self.mapped = parts.shared_data.content["memorized_map_structure"]
        self.is_reordered = self.mapped != rows
        if self.is_reordered:
            _check_rows(rows, self.mapped, self._pieces.own)
        if self._pieces.last:
            if self.batches is None:
                self.batches = {key: self._inputs.batch(ids.index(key), is_shown=True) for key in self.mapped}
            self.batches = self._run_last(self.batches, has_ended=False)
        if self.batches is not None and self.batches.keys() != self.mapped.keys():
            names = ", ".join(type(piece).__name__ for piece in self._pieces.last)
            raise ConnectorError([*self.mapped], names, f"expected a batch for each module, got {[*self.batches]}")

    def next_batches(self) -> dict[str, Batch]:
        """Return the batches the modules act on next, in RLlib's order."""
        ids = self._parts.store.module_ids
        if self.batches is not None:
            for module_id in self.batches:
                self._inputs.read_state(ids.index(module_id))
            return self.batches
        return {module_id: self._inputs.batch(ids.index(module_id)) for module_id in self.mapped}

    def hand_over(self, batches: dict[str, Any]) -> dict[str, Any]:
        """Return the next batches for the RLlib loop, from `batches` built by the default RLlib pieces."""
        self._parts.shared_data.note_batches(self.mapped)
        if self.batches is not None:
            return self.batches
        return {module_id: {**self._inputs.added.get(module_id, {}), **batches[module_id]} for module_id in self.mapped}

    def _default_columns(self, batch: dict[str, Any], rows: Mapped) -> dict[str, dict[str, Any]]:
        """Run the default RLlib pieces on added columns, and return module id -> columns."""
        _, add_time_axis, _, *others = self._pieces.default
        by_episode: dict[str, set[Hashable]] = {}
        for episode_id, agent_id in (row for of_module in rows.values() for row in of_module):
            by_episode.setdefault(episode_id, set()).add(agent_id)
        episodes = [_EpisodeToAct(*each) for each in by_episode.items()]
        for piece in (add_time_axis, *others):
            batch = piece(
                rl_module=self._parts.runner.module,
                batch=batch,
                episodes=episodes,
                explore=self._in_python.explore,
                shared_data=self._parts.shared_data.content,
            )
        return batch

    def _run_default(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the module batches, built entirely by the default RLlib pieces."""
        for piece in self._pieces.default:
            batch = self._in_python.call_default(piece, batch)
        return batch

    def _run_last(self, batch: dict[str, Any], *, has_ended: bool) -> dict[str, Any]:
        for piece in self._pieces.last:
            batch = self._in_python.call(piece, batch, has_ended=has_ended)
        return batch


class _EpisodeToAct:
    """An episode with only the interface needed by RLlib's AgentToModuleMapping."""

    def __init__(self, id_: str, agents: set[Hashable]):
        self.id_ = id_
        self._agents = agents

    def get_agents_to_act(self) -> set[Hashable]:
        """Return the agents to act next, like the RLlib method."""
        return self._agents


def _check_rows(rows: Mapped, mapped: Mapped, pieces: list[Any]) -> None:
    """Raise a ConnectorError unless both have the same agents."""
    for module_id in {**rows, **mapped}:
        ours, theirs = rows.get(module_id, []), mapped.get(module_id, [])
        if len(ours) != len(theirs) or {*ours} != {*theirs}:
            names = ", ".join(type(piece).__name__ for piece in pieces)
            problem = f"expected the first column to have an item for each of {ours}, got {theirs}"
            raise ConnectorError(module_id, names, problem)
