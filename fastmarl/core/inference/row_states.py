"""Saves and restores agent rows that the next module outputs and episode chunks depend on, as plain data."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.states import check_keys, column_of, whole_number
from fastmarl.core.inference.actors import Actor
from fastmarl.core.spaces.columns import Recorded
from fastmarl.core.spaces.layout import Leaf
from fastmarl.core.spaces.structs import Index
from fastmarl.core.store.block import Block, Key
from fastmarl.core.store.lanes import LaneTable

COLUMNS = {"agent": np.int64, "env_t": np.int32, "reward": np.float64}  # columns of all rows
KEYS = (*COLUMNS, "obs", "raw_obs", "n_acted", "weights_seq_no", "outputs", "recurrent", "connectors")


def rows_state(
    policy: Actor,
    block: Block,
    n_acted: int,
    lanes: np.ndarray,
    numbers: np.ndarray,
    rows: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the rows of the given agents as plain data, in order, at the end of a call.

    Args:
        policy: Policy of the module.
        block: The rows of the module.
        n_acted: Number of rows already acted upon.
        lanes: int32, agent number -> lane.
        numbers: Lane -> agent number; -1 for omitted agents.
        rows: Rows of these agents to return, int64, ascending; None returns all.
    """
    recurrent = policy.inference.lane_state
    number_R = numbers[block.lane_R[: block.rows.n]]
    if rows is None:
        rows = np.flatnonzero(number_R >= 0)
    acted = rows[rows < n_acted]
    used = lanes[np.unique(number_R[rows])]
    if recurrent is not None:  # agents waiting after their first action keep their memory
        recurrent.begin(lanes[np.unique(number_R[rows[rows >= n_acted]])])
    return {
        "agent": number_R[rows].astype(np.int64),
        "env_t": block.env_t_R[rows],
        "reward": block.reward_R[rows],
        "obs": [leaf[rows] for leaf in block.obs],
        "raw_obs": [] if block.raw_layout is None else [leaf[rows] for leaf in block.raw_obs],
        "n_acted": len(acted),
        "weights_seq_no": block.seq_no_R[acted],
        "outputs": [[_plain_key(key), column[acted]] for key, column in block.outputs.items()],
        "recurrent": [] if recurrent is None else recurrent.of(used),
        "connectors": policy.connectors.of_lanes(used),
    }


class ModuleRowsState:
    """A fully validated result of `rows_state()`.

    Args:
        policy: Policy of the module that will continue.
        state: Result of `rows_state()`.
        n_agents: Number of agents; agent numbers are below it.

    Attributes:
        agents: Numbers of the agents with rows, int64, ascending.
        last_rows: Last row of each of these agents.
        n_acted: Number of rows already acted upon.
        outputs: Key -> outputs of the module for these rows.

    Raises:
        ConfigError: If the state is damaged, or does not match the module.
    """

    def __init__(self, policy: Actor, state: Any, n_agents: int):
        self._policy = policy
        self._what = what = f"the rows of module {policy.module_id!r}"
        check_keys(what, state, KEYS)
        n = _n_rows(what, state["agent"])
        self._columns = {name: column_of(f"{what}: {name}", state[name], n, dtype) for name, dtype in COLUMNS.items()}
        agent_R = self._columns["agent"]
        if n and not (agent_R.min() >= 0 and agent_R.max() < n_agents):
            raise ConfigError(f"{what} belong to unknown agents")
        self.n_acted = whole_number(f"{what}: n_acted", state["n_acted"])
        self.agents, from_end = np.unique(agent_R[::-1], return_index=True)
        self.last_rows = n - 1 - from_end
        if np.count_nonzero(self.last_rows >= self.n_acted) != n - self.n_acted:
            raise ConfigError(f"{what}: n_acted={self.n_acted} does not match the {n} rows")
        connectors, recurrent = policy.connectors, policy.inference.lane_state
        raw_leaves = () if connectors.raw_layout is None else connectors.raw_layout.leaves
        self._obs = self._leaves("obs", state["obs"], connectors.recorded_layout.leaves, n)
        self._raw_obs = self._leaves("raw_obs", _widened(state["raw_obs"], raw_leaves), raw_leaves, n)
        self._seq_nos = column_of(f"{what}: weights_seq_no", state["weights_seq_no"], self.n_acted, np.int64)
        self.outputs = self._checked_outputs(state["outputs"])
        initial = [] if recurrent is None else recurrent.initial
        self._recurrent = self._leaves("recurrent", state["recurrent"], initial, len(self.agents))
        connectors.check_of_lanes(len(self.agents), state["connectors"])
        self._connectors = state["connectors"]

    def put(self, block: Block, table: LaneTable, lanes: np.ndarray) -> None:
        """Append the rows to a block of the module.

        Args:
            block: The block of the module.
            table: The table of lanes, which is updated.
            lanes: int32, agent number -> lane.
        """
        agent_R = self._columns["agent"]
        n, first = len(agent_R), block.rows.n
        new = slice(first, first + n)
        block.reserve(first + n)
        block.lane_R[new] = lanes[agent_R]
        block.env_t_R[new] = self._columns["env_t"]
        block.reward_R[new] = self._columns["reward"]
        block.seq_no_R[first : first + self.n_acted] = self._seq_nos
        by_agent = np.argsort(agent_R, kind="stable")
        has_former = np.diff(agent_R[by_agent], prepend=-1) == 0
        block.prev_R[first + by_agent] = np.where(has_former, first + np.roll(by_agent, 1), -1)
        for values, leaf in zip(self._obs, block.obs, strict=True):
            leaf[new] = values
        if self._raw_obs:
            for values, leaf in zip(self._raw_obs, block.raw_obs, strict=True):
                leaf[new] = values
        block.record(first, self.n_acted, self.outputs)
        is_lookback = np.ones(n, np.bool_)
        is_lookback[self.last_rows] = False
        before = block.lookback_R[:first]
        block.lookback_R = np.concatenate([before, np.zeros(first - len(before), np.bool_), is_lookback])
        block.rows.n = block.n_connected = first + n
        used = lanes[self.agents]
        table.row_L[used] = first + self.last_rows
        table.count_L[used] = np.bincount(agent_R, minlength=len(lanes))[self.agents]
        table.lookback_L[used] = table.count_L[used] - 1
        recurrent = self._policy.inference.lane_state
        if recurrent is not None:
            recurrent.put(used, self._recurrent)
        self._policy.connectors.put_of_lanes(used, len(table.row_L), self._connectors)

    def _leaves(self, name: str, given: Any, leaves: Sequence[Leaf | np.ndarray], n: int) -> list[np.ndarray]:
        what = f"{self._what}: {name}"
        arrays = _checked_list(what, given, len(leaves))
        return [column_of(what, array, n, leaf.dtype, leaf.shape) for array, leaf in zip(arrays, leaves, strict=True)]

    def _checked_outputs(self, given: Any) -> dict[Key, np.ndarray]:
        what = f"{self._what}: outputs"
        outputs: dict[Key, np.ndarray] = {}
        for pair in _checked_list(what, given):
            plain, values = _checked_list(what, pair, 2)
            if not isinstance(values, np.ndarray) or values.dtype.kind not in "biufc" or not values.ndim:
                raise ConfigError(f"{what} must be numeric arrays, got {type(values).__name__}")
            outputs[_key(what, plain)] = column_of(what, values, self.n_acted, values.dtype, values.shape[1:])
        return outputs


def _widened(given: Any, leaves: Sequence[Leaf]) -> Any:
    """Convert raw observations that version 0.1.0 rounded to float32 back to float64."""
    if not isinstance(given, list) or len(given) != len(leaves):
        return given
    return [
        array.astype(np.float64)
        if leaf.dtype == np.float64 and isinstance(array, np.ndarray) and array.dtype == np.float32
        else array
        for array, leaf in zip(given, leaves, strict=True)
    ]


def _n_rows(what: str, agents: Any) -> int:
    if not isinstance(agents, np.ndarray) or agents.ndim != 1:
        raise ConfigError(f"{what}: agent must be a 1-D array, got {type(agents).__name__}")
    return len(agents)


def _checked_list(what: str, values: Any, n: int | None = None) -> list[Any]:
    if not isinstance(values, list) or (n is not None and len(values) != n):
        length = "" if n is None else f" of length {n}"
        raise ConfigError(f"{what} must be a list{length}, got {values!r:.200}")
    return values


def _plain_key(key: Key) -> Any:
    """Convert an output key to plain types, since saved states support no integer type other than `int`."""
    if isinstance(key, str):
        return key
    return [["own", entry.value] if isinstance(entry, Recorded) else [isinstance(entry, Index), entry] for entry in key]


def _key(what: str, plain: Any) -> Key:
    if isinstance(plain, str):
        return plain
    entries = []
    for pair in _checked_list(what, plain):
        kind, entry = _checked_list(what, pair, 2)
        try:
            hash(entry)
            entries.append(Recorded(entry) if kind == "own" else Index(entry) if kind else entry)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{what} contain a key with the invalid entry {entry!r:.200}: {error}") from error
    if not entries:
        raise ConfigError(f"{what} contain an empty key")
    return tuple(entries)
