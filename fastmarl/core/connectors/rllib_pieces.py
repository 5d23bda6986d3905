"""Connector pieces with the `ConnectorV2` interface of RLlib, on either side of a module.

Such a piece is called as `piece(rl_module=, batch=, episodes=, explore=, shared_data=, metrics=)`, once for each module
with acting agents, and returns a batch. It receives Python objects, row by row; everything else remains in arrays.
"""

import inspect
from collections.abc import Hashable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.connectors.base import ConnectorPiece, EnvToModuleConnector, ModuleToEnvConnector, Rows
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import ConnectorError, shown
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct, nested_struct

OBS = Columns.OBS
Agents = list[tuple[int, Hashable]]  # (env index, agent id) of each row
RowKey = tuple[str, Hashable, str]  # episode id, agent id, module id: the key of an item in RLlib batches


def is_rllib_piece(given: Any) -> bool:
    """Return True if `given` is an object with the call signature of an RLlib connector piece."""
    if isinstance(given, (type, ConnectorPiece)) or inspect.isroutine(given) or not callable(given):
        return False
    try:
        names = inspect.signature(given).parameters.keys()
    except (TypeError, ValueError):
        return False
    return {"batch", "episodes"} <= names


def class_name(connector: object) -> str:
    """Return the class name of a connector, or the names of the pieces that an `RLlibPieces` wraps."""
    return connector.name if isinstance(connector, RLlibPieces) else type(connector).__name__


class RLlibPieces(ConnectorPiece):
    """Calls pieces sequentially, with the arguments that RLlib passes.

    Args:
        pieces: Pieces used for this module only.
        module_id: Id of the module that acts.
    """

    def __init__(self, pieces: Sequence[Any], module_id: str):
        self._pieces = list(pieces)
        self._module_id = module_id
        self._shared_data: dict[Any, Any] = {}
        self.name = ", ".join(type(piece).__name__ for piece in pieces)

    def get_state(self) -> dict[str, Any]:
        states = {str(i): piece.get_state() for i, piece in enumerate(self._pieces) if hasattr(piece, "get_state")}
        return {i: state for i, state in states.items() if state}

    def set_state(self, state: dict[str, Any]) -> None:
        for i, of_piece in state.items():
            self._pieces[int(i)].set_state(of_piece)

    def _call(self, batch: Any, rows: Rows, episodes: list[MultiAgentEpisode]) -> dict[Any, Any]:
        """Pass a batch through all pieces."""
        surroundings = rows.surroundings()
        for piece in self._pieces:
            batch = piece(
                rl_module=surroundings.module,
                batch=batch,
                episodes=episodes,
                explore=rows.explore,
                shared_data=self._shared_data,
                metrics=surroundings.metrics,
            )
            if not isinstance(batch, dict):
                problem = f"expected __call__() to return a batch (dict), got {shown(batch)}"
                raise ConnectorError(self._module_id, type(piece).__name__, problem)
        return batch

    def _column(self, name: Any, items: Any, keys: list[RowKey]) -> Any:
        """Stack the items of a column into arrays [n, ...], with one row per key in the given order."""
        if not isinstance(items, Mapping) or any(len(items.get(key, ())) != 1 for key in keys):
            raise self._error(f"expected batch[{name!r}] to be a dict with a list of one item for each of {keys}, got "
                              f"{shown(items)}")  # fmt: skip
        rows = [dict(flatten_struct(_item(items[key][0]))) for key in keys]
        if any(row.keys() != rows[0].keys() for row in rows):
            raise self._error(f"expected the same nesting in each item of batch[{name!r}], got {shown(items)}")
        try:
            return nested_struct({path: np.stack([row[path] for row in rows]) for path in rows[0]})
        except (ValueError, TypeError) as error:
            raise self._error(f"expected items of the same shape in batch[{name!r}]: {error}") from error

    def _error(self, problem: str) -> ConnectorError:
        return ConnectorError(self._module_id, self.name, problem)


class EnvToModulePieces(RLlibPieces, EnvToModuleConnector):
    """Pieces between observations and the module.

    As in RLlib, the first piece receives an empty batch, and all pieces receive copies of the episodes. Columns added
    as `{name: {(episode id, agent id, module id): [item]}}` are passed to the module. A column "obs" replaces the last
    observations of the episodes; alternatively, pieces may overwrite these in the episodes. None of this is recorded.
    """

    records = False
    reads_record = True
    adds_columns = True

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space, input_action_space: gym.Space
    ) -> gym.Space:
        space = input_observation_space
        for piece in self._pieces:
            if hasattr(piece, "input_observation_space"):
                piece.input_action_space, piece.input_observation_space = input_action_space, space
            if hasattr(piece, "recompute_output_observation_space"):
                space = piece.recompute_output_observation_space(space, input_action_space)
        return space

    def __call__(self, obs: Any, rows: Rows) -> Any:
        agents = rows.agents
        episodes = _episodes_of(agents, rows)
        batch = self._call({}, rows, [*episodes.values()])
        keys = _keys(agents, episodes, self._module_id)
        columns = {name: map_struct(_single, self._column(name, items, keys)) for name, items in batch.items()}
        if OBS not in columns:
            parts = [episodes[env_index].agent_episodes[agent_id] for env_index, agent_id in agents]
            newest = {key: [part.get_observations(-1)] for key, part in zip(keys, parts, strict=True)}
            columns[OBS] = self._column(OBS, newest, keys)
        made = columns.pop(OBS)
        rows.columns |= columns
        return made


class ModuleToEnvPiece(RLlibPieces, ModuleToEnvConnector):
    """A piece between the module and the envs.

    As in RLlib, its batch is `{module id: {output: tensor [n, ...]}}` before `GetActions`, and `{output: {(episode id,
    agent id, module id): [item]}}` after it.

    Args:
        by_module: True if the piece comes before `GetActions`.
    """

    def __init__(self, piece: Any, module_id: str, *, by_module: bool):
        super().__init__([piece], module_id)
        self._by_module = by_module

    def __call__(self, outputs: dict[str, Any], rows: Rows) -> dict[str, Any]:
        agents = rows.agents
        episodes = _episodes_of(agents, rows)
        if not self._by_module:
            keys = _keys(agents, episodes, self._module_id)
            batch = {
                name: {key: [map_struct(itemgetter(i), value)] for i, key in enumerate(keys)}
                for name, value in outputs.items()
            }
            columns = self._call(batch, rows, [*episodes.values()])
            return {name: self._column(name, items, keys) for name, items in columns.items()}
        tensors = {name: map_struct(torch.from_numpy, value) for name, value in outputs.items()}
        made = self._call({self._module_id: tensors}, rows, [*episodes.values()]).get(self._module_id)
        if not isinstance(made, dict):
            raise self._error(f"expected a dict of outputs as batch[{self._module_id!r}], got {shown(made)}")
        return {name: map_struct(_item, value) for name, value in made.items()}


def _item(value: Any) -> Any:
    """Convert tensors to arrays, and RLlib batches of size 1 to their only row."""
    if isinstance(value, (dict, tuple, list)):
        return map_struct(_item, value)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value)[0] if type(value).__name__ == "BatchedNdArray" else value


def _episodes_of(agents: Agents, rows: Rows) -> dict[int, MultiAgentEpisode]:
    """Return env index -> running episode, for the envs of these agents."""
    episode_of = rows.surroundings().episode_of
    return {env_index: episode_of(env_index) for env_index in sorted({env_index for env_index, _ in agents})}


def _keys(agents: Agents, episodes: Mapping[int, MultiAgentEpisode], module_id: str) -> list[RowKey]:
    return [(episodes[env_index].id_, agent_id, module_id) for env_index, agent_id in agents]


def _single(values: np.ndarray) -> np.ndarray:
    """Convert float64 to float32, as in module batches of RLlib."""
    return values.astype(np.float32) if values.dtype == np.float64 else values
