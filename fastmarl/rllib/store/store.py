"""The step store of the drop-in replacement: rows with records and lookback as in RLlib."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastmarl.core.native._rllib_scatter import RLlibScatter
from fastmarl.core.store.lanes import EpisodeIds
from fastmarl.core.store.store import RowStore
from fastmarl.rllib.store.block import RLlibBlock, is_state
from fastmarl.rllib.store.layout import WHOLE, ObservationLayout
from fastmarl.rllib.store.mixed_outputs import completed_rows, is_mixed
from fastmarl.rllib.store.records import RLlibLanes, RLlibRecord


class RLlibStore(RowStore):
    """Stores the steps of all envs. It starts without modules; see add_module().

    Args:
        table: Env, agent and module of each lane.
        merge_flags: See RLlibScatter.
        n_agents: See RowStore.
        rewrites: True if connectors rewrite observations.

    Attributes:
        stateful: Indices of modules with recurrent state.
        seq_no: Sequence number of the current weights.
        spaces: Lane -> observation space that connectors set in the agent episode of this chunk.
    """

    scatter: RLlibScatter
    blocks: list[RLlibBlock]  # type: ignore[assignment]

    def __init__(self, table: RLlibLanes, merge_flags: bool, n_agents: Sequence[int], *, rewrites: bool = False):
        self._merge_flags = merge_flags
        self._rewrites = rewrites
        self._raw_layouts: dict[int, ObservationLayout] = {}
        self.stateful: set[int] = set()
        self.spaces: dict[int, Any] = {}
        self.seq_no = 0
        super().__init__([], [], table, lookback=0, n_agents=n_agents)
        self._ids = EpisodeIds()

    def _make_scatter(self) -> RLlibScatter:
        return RLlibScatter(self.table, self._grow, self.rows, self._merge_flags)

    def _make_block(self, module: int, written: int, n_lanes: int) -> RLlibBlock:
        def bind(block: RLlibBlock) -> None:
            self._layouts[module] = block.layout  # type: ignore[call-overload]
            if block.raw_layout is not None:
                self._raw_layouts[module] = block.raw_layout
            self.scatter.bind_kinds(module, block.kinds)

        rows, finals = self._room(module, written, n_lanes)
        return RLlibBlock(
            self._layouts[module],  # type: ignore[arg-type]
            self._rings[module],
            self.rows[module],
            bind,
            self._raw_layouts.get(module, WHOLE) if self._rewrites else None,
            n_rows=rows,
            n_finals=finals,
        )

    def open_record(self, env_index: int, policy_mapping_fn: Any) -> None:
        """Open the record of the next episode of the env, which keeps this mapping function."""
        record = RLlibRecord(env_index, self._ids.new(), time.perf_counter(), self._ids.new)
        record.policy_mapping_fn = policy_mapping_fn
        self.table.envs[env_index].clear()
        self.table.records[env_index] = record
        self.lookback_E[env_index] = 0

    def close_record(self, env_index: int) -> None:
        """Close the record of the current episode of the env; its lanes remain until renew()."""
        record = self.table.record(env_index)
        self.ended_lanes += record.ended
        record.ended = []
        self.table.records[env_index] = None

    def add_module(self, module_id: str) -> None:
        """Add a module, whose layout is determined by its first observation."""
        module = len(self.rows)
        self.put_module(module, module_id, WHOLE)  # type: ignore[arg-type]
        self.activate(module)

    def fit(self, module: int, observation: Any) -> None:
        """Determine the row layout of a module from its first observation, unless the layout is already known."""
        block = self.blocks[module]
        if block.env_layout is WHOLE and not block.rows.n and not block.rows.n_finals:
            block.lay_out(ObservationLayout.of(observation))

    def use_weights(self, seq_no: int) -> None:
        """Set the sequence number of the weights used by subsequent actions."""
        self.seq_no = seq_no
        for block, first in zip(self.blocks, self.acting_from, strict=True):
            block.seq_no, block.unstamped_from = seq_no, first

    def change_weights(self, seq_no: int) -> None:
        """Change the weights during a call: stamp earlier actions with the previous number, then call use_weights()."""
        self.stamp_all()
        self.use_weights(seq_no)

    def stamp_all(self) -> None:
        """Stamp all recorded actions with the current number, so that they can be read."""
        self.stamp(self.seq_no)

    def _lookback_begins(self, module: int, lanes: np.ndarray) -> np.ndarray:
        """As in the base class, but recurrent agents keep their last completed step, whose state learners need."""
        begins = super()._lookback_begins(module, lanes)
        block = self.blocks[module]
        if module not in self.stateful or not (block.former or block.has_states):
            return begins
        reaches_back = self.table.count_L[lanes] > 1
        if block.former:
            reaches_back &= np.array([self._has_states(block, lane) for lane in lanes.tolist()], bool)
        last = block.prev_R[self.table.row_L[lanes]]
        begins[reaches_back] = np.minimum(begins, block.env_t_R[last])[reaches_back]
        return begins

    def _has_states(self, block: RLlibBlock, lane: int) -> bool:
        """Return True if the module chose an action in this chunk; random actions have no state."""
        return any(
            any(map(is_state, block.former[row])) if row < len(block.former) else block.has_states
            for row in self.acted_rows_of(lane).tolist()
        )

    def acted_rows_of(self, lane: int) -> np.ndarray:
        """Return the rows of a live lane at which its agent acted."""
        rows = self.rows_of(lane)
        return rows[rows < self.acting_from[self.table.module_L[lane]]]

    def _renew_block(self, module: int, live: np.ndarray) -> None:
        block = self.blocks[module]
        if block.former:
            for lane in live[self.table.module_L[live] == module].tolist():
                if is_mixed(block, rows := self.acted_rows_of(lane)):
                    block.completed |= completed_rows(block, rows)
        super()._renew_block(module, live)
        self.blocks[module].forget_waiting(self.acting_from[module])

    def renew(self) -> None:
        """Prepare the next call: running episodes continue in new chunks, in new blocks."""
        self.renew_blocks()
        self.spaces.clear()
        running: list[Any] = self.running()
        for record in running:
            self.ended_lanes += record.ended
            record.ended = []
        self.next_chunks(running)
        for record in running:
            record.lookback = int(self.lookback_E[record.env_index])
        self.release_lanes()
