"""The rows of all modules: observations and rewards of agents, and outputs of modules.

A call of `sample()` fills one block per module. At its end, `renew_blocks()` starts new blocks with the old rows that
the next call needs (see docs/data_path.md). `core/episodes/log.py` and `fastmarl.rllib` build episodes from the rows.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from fastmarl.core.errors import ModuleOutputError
from fastmarl.core.kernels.accumulate import accumulate
from fastmarl.core.native import _store
from fastmarl.core.native._module_rows import ModuleRows
from fastmarl.core.native._records import EpisodeRecord, next_chunks
from fastmarl.core.native._scatter import Scatter
from fastmarl.core.objects.weakly import weakly
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.store.block import Block, Key, OutputFormError
from fastmarl.core.store.lanes import LaneTable
from fastmarl.core.store.memory import MemoryRing
from fastmarl.core.store.room import Expectation, Room

OTHER_BYTES = 64  # estimate per row, without the observation: outputs, reward and indices of a small module
INACTIVE: Any = None  # placeholder for the block of a module without agents


class RowConnectors(Protocol):
    """Interface of connectors that convert env observations to recorded observations, such as `ModuleConnectors`."""

    min_lookback_rows: int

    @property
    def raw_layout(self) -> RowLayout | None:
        """Layout of the observations from envs, or None if they are recorded unchanged."""

    def record(self, block: Block) -> None:
        """Write the recorded observations of new rows."""


class RowStore:
    """Stores the lanes and the rows of each module.

    Args:
        layouts: Layout of the recorded observations of each module.
        module_ids: Id of each module.
        table: The lane table.
        lookback: Env steps of history that a chunk carries over from the previous chunk.
        connectors: Connectors that convert observations, per module; () if there are none.
        rewards: Converts received rewards to recorded rewards; None to record them unchanged.
        n_agents: Number of declared agents per env, 0 if undeclared; used to estimate memory for the first call.

    Attributes:
        connects: True if observations go through connectors before they are recorded.
        is_connecting: True while connectors run; remains True if they raise or are interrupted.
        active: Ascending indices of the modules with a block. A module gets a block with its first agent and loses it
            after a call without agents, so idle modules cost neither time nor memory.
        on_activate: Called with the index of a module that gets a block.
        acting_from: Per module, first row that its agents have not acted on yet.
        first_action: Per module, `acting_from` at the start of the call.
        lookback_E: int32, lookback of the next chunk in env steps, per env.
        taken_back: (env steps, actions) subtracted by the last `take_back()`.
        ended_lanes: Lanes of finished or dropped episodes; `release_lanes()` frees them.
    """

    def __init__(
        self,
        layouts: list[RowLayout],
        module_ids: list[str],
        table: LaneTable,
        lookback: int,
        *,
        connectors: Sequence[RowConnectors | None] = (),
        rewards: Callable[[np.ndarray], np.ndarray] | None = None,
        n_agents: Sequence[int] = (),
    ):
        self.table = table
        self.module_ids = module_ids
        self._layouts = layouts
        self._connectors = list(connectors) or [None] * len(layouts)
        self._rewards = rewards
        self.connects = _any_records(self._connectors)
        self.is_connecting = False
        self.lookback_E = np.full(len(table.envs), lookback, np.int32)
        self._expectation = Expectation(n_agents or [0] * len(table.envs), len(layouts))
        self._rings = [MemoryRing() for _ in layouts]
        self.rows = [ModuleRows() for _ in layouts]
        self.scatter = self._make_scatter()
        self.active: list[int] = []
        self.on_activate: Callable[[int], None] = lambda module: None
        self.blocks = [INACTIVE] * len(layouts)
        self.acting_from = [0] * len(layouts)
        self.first_action = [0] * len(layouts)
        self._stamped = [0] * len(layouts)
        self._actions_taken_back: Counter[int] = Counter()  # per module; excluded from the actions of the call
        self.taken_back = 0, 0
        self.ended_lanes: list[int] = []

    def _make_scatter(self) -> Scatter:
        return Scatter(self.table, weakly(self._grow), self.rows)

    def _make_block(self, module: int, written: int, n_lanes: int) -> Block:
        layout, raw_layout = self.layouts_of(module)
        rows, finals = self._room(module, written, n_lanes)
        return Block(
            layout, self._rings[module], self.rows[module], raw_layout, self._rewards, n_rows=rows, n_finals=finals
        )

    def _room(self, module: int, written: int, n_lanes: int) -> Room:
        """Estimate the capacity needed by the block of a module, given its current rows and lanes."""
        row_bytes = sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in self._layouts[module].leaves)
        return self._expectation.room(module, written, n_lanes, row_bytes + OTHER_BYTES)

    def _lanes_by_module(self) -> list[int]:
        """Return the number of live lanes per module."""
        live = self.table.live_lanes(range(len(self.table.envs)))
        n_lanes: list[int] = np.bincount(self.table.module_L[live], minlength=len(self.rows)).tolist()
        return n_lanes

    def _grow(self, module: int, n_rows: int, n_finals: int) -> None:
        """Ensure capacity for more rows and final observations in the block of a module, creating it if needed."""
        if self.blocks[module] is INACTIVE:
            self.activate(module)
        else:
            self.blocks[module].make_room(n_rows, n_finals)

    # Adding and removing modules.

    def put_module(
        self, module: int, module_id: str, layout: RowLayout, connectors: RowConnectors | None = None
    ) -> None:
        """Add a module at the next index, or at a freed index."""
        if module == len(self.rows):
            self.rows.append(ModuleRows())
            self.blocks.append(INACTIVE)
            for places in (self.acting_from, self.first_action, self._stamped):
                places.append(0)
            self._expectation.n_modules += 1
        self._layouts = [*self._layouts[:module], layout, *self._layouts[module + 1 :]]
        self._connectors = [*self._connectors[:module], connectors, *self._connectors[module + 1 :]]
        self.connects = _any_records(self._connectors)
        self._rings = [*self._rings[:module], MemoryRing(), *self._rings[module + 1 :]]
        # A new list: existing chunks look up the id of the former module in the old one.
        self.module_ids = [*self.module_ids[:module], module_id, *self.module_ids[module + 1 :]]

    def layouts_of(self, module: int) -> tuple[RowLayout, RowLayout | None]:
        """Return the layout of recorded observations, and that of received observations or None if it is the same."""
        connectors = self._connectors[module]
        return self._layouts[module], None if connectors is None else connectors.raw_layout

    def activate(self, module: int) -> None:
        """Create a block for the rows of a module."""
        self.blocks[module] = self._make_block(module, 0, self._lanes_by_module()[module])
        self.active = sorted([*self.active, module])
        self.on_activate(module)

    def deactivate(self, module: int) -> None:
        """Free the memory of a module without agents at the end of a call; its index may then be reused."""
        if self.blocks[module] is not INACTIVE:
            self.active = [other for other in self.active if other != module]
            self.blocks[module] = INACTIVE
            self.rows[module] = ModuleRows()  # the old object points to the block
            self._rings[module] = MemoryRing()
            self.acting_from[module] = self.first_action[module] = self._stamped[module] = 0

    # Within a tick.

    def begin_call(self, steps: int | None, *, of_agents: bool = False) -> None:
        """Reserve rows for a call of `steps` env steps (or agent steps); None if the number is unknown."""
        self._expectation.begin_call(steps, of_agents=of_agents)
        n_lanes = self._lanes_by_module()
        for module in self.active:
            self.blocks[module].reserve(*self._room(module, self.rows[module].n, n_lanes[module]))

    def connect(self) -> None:
        """Run the connectors on all rows added since the last `connect()` to compute their recorded observations."""
        self.is_connecting = True
        for module in self.active:
            connectors = self._connectors[module]
            if connectors is not None and connectors.raw_layout is not None:
                connectors.record(self.blocks[module])
        self.is_connecting = False

    def record(self, module: int, outputs: dict[Key, np.ndarray]) -> None:
        """Store the outputs of a module for the rows from `acting_from[module]` on.

        Raises:
            ModuleOutputError: If an output has a different dtype, shape or structure than in earlier rows.
        """
        first = self.acting_from[module]
        try:
            self.blocks[module].record(first, self.rows[module].n - first, outputs)
        except OutputFormError as problem:
            raise ModuleOutputError(self.module_ids[module], str(problem)) from None

    def advance(self) -> int:
        """Start the next tick after all agents have acted; return the number of actions."""
        actions = 0
        for module in self.active:
            n = self.rows[module].n
            actions += n - self.acting_from[module]
            self.acting_from[module] = n
        return actions

    def stamp(self, seq_no: int) -> None:
        """Record `seq_no`, the sequence number of the weights, for all actions since the last stamp."""
        for module in self.active:
            self.blocks[module].seq_no_R[self._stamped[module] : self.acting_from[module]] = seq_no
        self._stamped = list(self.acting_from)

    # At the end of episodes and of a call.

    def running(self) -> list[EpisodeRecord]:
        """Return the running episodes in env order."""
        return [record for record in self.table.records if record is not None]

    def rows_of(self, lane: int) -> np.ndarray:
        """Return the rows of a lane in its module block (chunk and lookback), int64, in order."""
        table = self.table
        block = self.blocks[table.module_L[lane]]
        rows, _ = _store.chain(block.prev_R, int(table.row_L[lane]), int(table.count_L[lane]))
        return rows

    def drop_episode(self, env_index: int) -> None:
        """Drop the running episode of the env, if there is one."""
        record = self.table.records[env_index]
        env = self.table.envs[env_index]
        if record is not None:
            self.ended_lanes += [*record.ended, *env.lane_of.values()]
            self.table.records[env_index] = None
        env.clear()

    def take_back(self, env_index: int, *, entire_chunk: bool) -> None:
        """Subtract the step in which an env failed from the counts, and set `taken_back`.

        Args:
            env_index: Index of the env.
            entire_chunk: True to subtract all steps of this call in the current chunk, which will be discarded.
        """
        table, record = self.table, self.table.records[env_index]
        env = table.envs[env_index]
        n_actions = 0
        for lane in record.lanes if entire_chunk and record else env.lane_of.values():
            if table.row_L[lane] < 0:
                continue  # interrupted while joining
            module, n = int(table.module_L[lane]), int(table.count_L[lane] - table.lookback_L[lane])
            block = self.blocks[module]
            rows, _ = _store.chain(block.prev_R, int(table.row_L[lane]), n if entire_chunk else 1)
            has_acted = (rows >= self.first_action[module]) & (rows < self.acting_from[module])
            if not entire_chunk:
                has_acted &= block.env_t_R[rows] == env.env_t
            n_taken = int(np.count_nonzero(has_acted))
            table.actions_L[lane] -= n_taken
            self._actions_taken_back[module] += n_taken
            n_actions += n_taken
        self.taken_back = 1 + (env.env_t - record.env_t_started if entire_chunk and record else 0), n_actions

    def add_up(self) -> dict[str, int]:
        """Add the rewards, steps and actions of the call to the lane sums; return {module id: number of actions}.

        Must be called once per call of `sample()`.
        """
        table = self.table
        for module in self.active:
            block, rows = self.blocks[module], self.rows[module]
            reward_R, lane_R = block.reward_R[: rows.n], block.lane_R[: rows.n]
            actions = self.first_action[module], self.acting_from[module]
            ends = table.row_L, table.final_L
            sums = table.return_L, table.steps_L, table.actions_L
            accumulate(reward_R, lane_R, block.lookback_R, *actions, *ends, *sums)
        module_steps = self.module_steps_so_far()
        self._actions_taken_back.clear()
        return module_steps

    def module_steps_so_far(self) -> dict[str, int]:
        """Return {module id: number of actions} of this call."""
        module_steps = dict[str, int]()
        for module in self.active:
            module_id, n_actions = self.module_ids[module], self.acting_from[module] - self.first_action[module]
            n_actions -= self._actions_taken_back[module]
            module_steps[module_id] = module_steps.get(module_id, 0) + n_actions
        return module_steps

    def actions_so_far(self) -> np.ndarray:
        """Return the number of actions of this call per lane, int64. Must be called before `add_up()`."""
        table = self.table
        actions_L = table.actions_L.copy()
        for module in self.active:
            lanes = self.blocks[module].lane_R[self.first_action[module] : self.acting_from[module]]
            actions_L += np.bincount(lanes, minlength=len(actions_L))
        return actions_L

    def begin_actions(self) -> None:
        """Start counting the actions of a call."""
        self.first_action, self._stamped = list(self.acting_from), list(self.acting_from)

    def split_chunk(self, env_index: int) -> None:
        """Start the next chunk of the env in the same blocks, with the last rows of its live lanes."""
        live = self.table.live_lanes([env_index])
        for module in self.active:
            lanes, _, counts = self._carried(module, live)
            self._open_chunk(lanes, counts)

    def renew_blocks(self) -> None:
        """Start new blocks with the old rows that running episodes still need."""
        live = self.table.live_lanes(range(len(self.table.envs)))
        for module in self.active:
            self._renew_block(module, live)
        self.begin_actions()

    def next_chunks(self, records: list[EpisodeRecord]) -> None:
        """Continue these episodes in new chunks, with their live lanes."""
        next_chunks(records, self.table.envs, self.lookback_E, self.table.done_L)
        for record in records:
            env = self.table.envs[record.env_index]
            if env.infos:
                env.infos = self._infos_for_next(record)

    def release_lanes(self) -> None:
        """Free `ended_lanes`, whose rows were returned or dropped."""
        self.table.release(self.ended_lanes)
        self.ended_lanes = []

    def _infos_for_next(self, record: EpisodeRecord) -> list[tuple[int, int, dict[str, Any]]]:
        """Select the infos needed by the next chunk of the episode."""
        table, env = self.table, self.table.envs[record.env_index]
        since = env.env_t - int(self.lookback_E[record.env_index])
        kept_from = {-1: since}
        for lane in record.lanes:
            block = self.blocks[table.module_L[lane]]
            rows = self.rows_of(lane)
            kept_from[lane] = min(since, int(block.env_t_R[rows[0]]))
        return [info for info in env.infos if info[0] >= kept_from.get(info[1], env.env_t + 1)]

    def _carried(self, module: int, live: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the live lanes of a module, their rows for the next chunk, and the number of rows per lane.

        See `_store.carried()`.
        """
        table, block = self.table, self.blocks[module]
        lanes = live[table.module_L[live] == module]
        from_env_t = self._lookback_begins(module, lanes)
        connectors = self._connectors[module]
        at_least = 0 if connectors is None else connectors.min_lookback_rows
        rows, counts = _store.carried(
            lanes, table.row_L, table.count_L, from_env_t, block.prev_R, block.env_t_R, at_least
        )
        return lanes, rows, counts

    def _lookback_begins(self, module: int, lanes: np.ndarray) -> np.ndarray:
        """Return the env step at which the lookback of each lane starts in the next chunk, int32."""
        env_t_E = np.array([env.env_t for env in self.table.envs], np.int32)
        begins: np.ndarray = (env_t_E - self.lookback_E)[self.table.env_L[lanes]]
        return begins

    def _open_chunk(self, lanes: np.ndarray, counts: np.ndarray) -> None:
        """Start a chunk of these lanes at their last row; `counts` (int32) is rows per lane, including lookback."""
        table = self.table
        table.t_started_L[lanes] += table.count_L[lanes] - table.lookback_L[lanes] - 1
        table.count_L[lanes] = counts
        table.lookback_L[lanes] = counts - 1

    def _renew_block(self, module: int, live: np.ndarray) -> None:
        """Copy the carried rows to a new block, in order; rows waiting for an action come last."""
        table, old = self.table, self.blocks[module]
        lanes, rows, counts = self._carried(module, live)
        order = np.argsort(rows)
        n_waiting = int(np.count_nonzero(rows >= self.acting_from[module]))
        self._expectation.note(module, self.rows[module].n, self.rows[module].n_finals)
        old.close()
        block = self._make_block(module, len(rows), len(lanes))
        block.take(old, rows[order])
        place = np.empty_like(order)  # row in the new block; `rows` is grouped by lane, last to first
        place[order] = np.arange(len(order))
        heads = np.cumsum(counts) - counts
        has_former = np.ones(len(rows), bool)
        has_former[heads + counts - 1] = False
        former = np.full(len(rows), -1, np.int64)
        former[np.flatnonzero(has_former)] = place[np.flatnonzero(has_former) + 1]
        block.prev_R[place] = former
        block.lookback_R = np.ones(len(rows), bool)
        block.lookback_R[place[heads]] = False
        table.row_L[lanes] = place[heads]
        self._open_chunk(lanes, counts)
        self.blocks[module] = block
        self.acting_from[module] = len(rows) - n_waiting


def _any_records(connectors: Sequence[RowConnectors | None]) -> bool:
    return any(each is not None and each.raw_layout is not None for each in connectors)
