"""The chain of connectors before and after a single module."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.connectors.base import ConnectorPiece, EnvToModuleConnector, ModuleToEnvConnector, Rows, Surroundings
from fastmarl.core.connectors.module_to_env import OutputConnectors
from fastmarl.core.connectors.rllib_pieces import class_name
from fastmarl.core.errors import ConfigError, ConnectorError
from fastmarl.core.errors.states import check_keys, column_of
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.values import can_hold, described
from fastmarl.core.store.block import Block
from fastmarl.core.store.lanes import LaneTable


class ModuleConnectors:
    """Converts env data to recorded data, and recorded data to module batches; then transforms the module outputs.

    Args:
        module_id: Id of the module.
        connectors: In order of application: recording connectors, other observation connectors, output connectors.
        observation_space, action_space: Spaces of the agents.
        keep_float64: For recorded data, see `RowLayout`; recording connectors get observations as sent.

    Attributes:
        spaces: (observation space, action space) of the agents.
        sent_space, sent_layout: Space and layout of the observations sent by envs.
        raw_layout: The same layout; None if observations are recorded as sent.
        recorded_layout: Layout of the recorded observations.
        layout, observation_space: Layout and space of the module inputs.
        batches: True if the module inputs differ from the recorded observations.
        min_lookback_rows: Number of rows of each agent to carry over besides its last one.
        outputs: The output connectors.
        adds_columns: True if module batches may have other columns besides observations.
        columns: Name -> additional column of the last batch, array [n, ...].

    Raises:
        ConfigError: If an object is not a connector, or connectors are in the wrong order or do not support the spaces.
    """

    def __init__(
        self,
        module_id: str,
        connectors: Sequence[ConnectorPiece],
        observation_space: gym.Space,
        action_space: gym.Space,
        *,
        keep_float64: bool = True,
    ):
        self.module_id = module_id
        self.connectors = list(connectors)
        self._of_obs = _of_observations(module_id, self.connectors)
        self.outputs = OutputConnectors(
            module_id, [each for each in connectors if isinstance(each, ModuleToEnvConnector)]
        )
        self._keep_float64 = keep_float64
        self._n_recording = sum(connector.records for connector in self._of_obs)
        spaces = [observation_space]
        for connector in self._of_obs:
            spaces.append(connector.recompute_output_observation_space(spaces[-1], action_space))
        self._layouts = [  # data is not rounded before it is recorded
            RowLayout(space, keep_float64=keep_float64 or index < self._n_recording)
            for index, space in enumerate(spaces)
        ]
        self.spaces = observation_space, action_space
        self.sent_space = observation_space
        self.sent_layout = self._layouts[0]
        self.raw_layout = self.sent_layout if self._n_recording else None
        self.recorded_layout = self._layouts[self._n_recording]
        self.layout = self._layouts[-1]
        self.observation_space = self.layout.space
        self.batches = self._n_recording < len(self._of_obs)
        self.min_lookback_rows = max((connector.min_lookback_rows for connector in self._of_obs), default=0)
        self.adds_columns = any(connector.adds_columns for connector in self._of_obs)
        self.columns: dict[str, Any] = {}
        self._table: LaneTable
        self._surroundings: Surroundings | None = None

    def make(self, space: gym.Space) -> bool:
        """Return True if a module with this observation space accepts the output of the connectors."""
        taken = RowLayout(space, keep_float64=self._keep_float64)
        return {leaf.path: leaf for leaf in taken.leaves} == {leaf.path: leaf for leaf in self.layout.leaves}

    def bind(self, table: LaneTable, surroundings: Surroundings | None = None) -> None:
        """Use these lanes in all later calls."""
        self._table, self._surroundings = table, surroundings

    @property
    def knows_lanes(self) -> bool:
        """True if all connectors declare their per-lane data."""
        return all(connector.per_agent_state is not None for connector in self.connectors)

    def of_lanes(self, lanes: np.ndarray) -> list[dict[str, np.ndarray]]:
        """Return for each connector a dict of name -> per-lane data [n, ...] of these lanes (int32 [n])."""
        return [
            {name: _taken(getattr(connector, name), lanes) for name in connector.per_agent_state or ()}
            for connector in self.connectors
        ]

    def check_of_lanes(self, n: int, state: Any) -> None:
        """Raise ConfigError unless `of_lanes()` of n lanes could have returned `state`."""
        what = f"the per-lane data of connectors of module {self.module_id!r}"
        if not isinstance(state, list) or len(state) != len(self.connectors):
            raise ConfigError(f"{what} must be a list of {len(self.connectors)} dicts, got {state!r:.200}")
        for connector, arrays in zip(self.connectors, state, strict=True):
            check_keys(what, arrays, connector.per_agent_state or ())
            for name, values in arrays.items():
                own = getattr(connector, name)
                column_of(f"{what}: {name}", values, n, own.dtype, own.shape[1:])

    def put_of_lanes(self, lanes: np.ndarray, n_lanes: int, state: list[dict[str, np.ndarray]]) -> None:
        """Set the data of these lanes (int32 [n]) out of `n_lanes`; data of other lanes remains unchanged."""
        for connector, arrays in zip(self.connectors, state, strict=True):
            for name, values in arrays.items():
                before = getattr(connector, name)[:n_lanes]
                of_lanes = np.zeros((n_lanes, *values.shape[1:]), values.dtype)
                of_lanes[: len(before)] = before
                of_lanes[lanes] = values
                setattr(connector, name, of_lanes)

    def record(self, block: Block) -> None:
        """Apply the recording connectors to all new observations in order of arrival, and store the results."""
        n_finals, first = block.rows.n_finals, block.n_finals_connected
        if first < n_finals:
            for at, together in groupby(block.final_at_F[first:n_finals].tolist()):
                end = first + sum(1 for _ in together)
                self._record_finals(block, first, end, at)
                first = end
            block.n_finals_connected = n_finals
        self._record_rows(block, block.rows.n)

    def rows(self, block: Block, first: int, end: int, *, explore: bool) -> Rows:
        """Return the rows on which the module is about to act."""
        return Rows(self._table, block, first, end, is_final=False, explore=explore, surroundings=self._surroundings)

    def batch(self, block: Block, first: int, end: int, *, explore: bool) -> list[np.ndarray]:
        """Return the leaves of the module input for rows first .. end, each [n, ...]."""
        rows = self.rows(block, first, end, explore=explore)
        leaves = self._run(self._n_recording, len(self._of_obs), [leaf[first:end] for leaf in block.obs], rows)
        self.columns = rows.columns
        return leaves

    def _record_rows(self, block: Block, end: int) -> None:
        first = block.n_connected
        if first < end:
            rows = Rows(self._table, block, first, end, is_final=False)
            self._write(block.raw_obs, block.obs, first, end, rows)
            block.n_connected = end

    def _record_finals(self, block: Block, first: int, end: int, at: int) -> None:
        """Record final observations that arrived after `at` rows; if `at` is -1, none did, so repeat the last row."""
        if at < 0:
            for leaf, final_leaf in zip(block.obs, block.final_obs, strict=True):
                final_leaf[first:end] = leaf[block.final_prev_F[first:end]]
            return
        self._record_rows(block, at)
        rows = Rows(self._table, block, first, end, is_final=True)
        self._write(block.raw_final_obs, block.final_obs, first, end, rows)

    def _write(self, raw: list[np.ndarray], out: list[np.ndarray], first: int, end: int, rows: Rows) -> None:
        made = self._run(0, self._n_recording, [leaf[first:end] for leaf in raw], rows)
        for leaf, values in zip(out, made, strict=True):
            leaf[first:end] = values

    def _run(self, first: int, end: int, leaves: list[np.ndarray], rows: Rows) -> list[np.ndarray]:
        """Apply connectors first .. end sequentially to these leaves."""
        obs = self._layouts[first].nest(leaves)
        for index in range(first, end):
            obs = self._of_obs[index](obs, rows)
            leaves = self._leaves(index, obs, len(rows))
        return leaves

    def _leaves(self, index: int, obs: Any, n: int) -> list[np.ndarray]:
        """Check the output of a connector against its declared space, and return its leaves."""
        layout = self._layouts[index + 1]
        name = class_name(self._of_obs[index])
        try:
            leaves = layout.leaves_of(obs)
        except (KeyError, IndexError, TypeError) as error:
            problem = f"expected arrays nested like {layout.space}, got {type(obs).__name__}: {error!r}"
            raise ConnectorError(self.module_id, name, problem) from error
        for values, leaf in zip(leaves, layout.leaves, strict=True):
            is_array = isinstance(values, np.ndarray)
            fits = is_array and (values.dtype == leaf.dtype or can_hold(leaf.dtype, values))
            if not fits or values.shape != (n, *leaf.shape):
                path = "".join(f"[{key!r}]" for key in leaf.path)
                got = described(values) if is_array else type(values).__name__
                problem = (
                    f"expected obs{path} of shape {(n, *leaf.shape)} and dtype {leaf.dtype}, as "
                    f"declared by recompute_output_observation_space(), got {got}"
                )
                raise ConnectorError(self.module_id, name, problem)
        return leaves


def _taken(of_lanes: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """Return the entries of these lanes, with 0 for lanes beyond the end of the array, which have no data yet."""
    taken = np.zeros((len(lanes), *of_lanes.shape[1:]), of_lanes.dtype)
    is_there = lanes < len(of_lanes)
    taken[is_there] = of_lanes[lanes[is_there]]
    return taken


def _of_observations(module_id: str, connectors: Sequence[Any]) -> list[EnvToModuleConnector]:
    """Return the connectors that change observations.

    Raises:
        ConfigError: If an object is not a connector, or they are in the wrong order.
    """
    of_obs, made_for_acting = list[EnvToModuleConnector](), ""
    for connector in connectors:
        name = class_name(connector)
        if not isinstance(connector, ConnectorPiece):
            raise ConfigError(f"module {module_id!r}: expected connectors, got {connector!r}")
        if not isinstance(connector, EnvToModuleConnector):
            continue
        if made_for_acting and (connector.records or connector.reads_record):
            raise ConfigError(f"env_to_module_connector of module {module_id!r}: {name} needs recorded observations, "
                              f"so it must come before {made_for_acting}, which does not record")  # fmt: skip
        if not connector.records:
            made_for_acting = name
        of_obs.append(connector)
    return of_obs
