"""Builds a SampleBlock from the blocks of the store, by gathering the chunks of a call agent by agent.

Gathered data shares no memory with the store. Observations, by far the largest part, are gathered on first access;
their block remains leased until then.
"""

import math
from collections import defaultdict
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from fastmarl.core.kernels.accumulate import sum_spans
from fastmarl.core.native import _rllib_episodes as compiled
from fastmarl.core.native import _store
from fastmarl.core.native._rllib_scatter import as_object
from fastmarl.core.store.block import ENOUGH
from fastmarl.core.store.memory import LeasedArray, MemoryRing
from fastmarl.rllib.episodes.lists import stacked
from fastmarl.rllib.episodes.sample_block import (
    AgentMeta,
    ChunkMeta,
    ModuleColumns,
    SampleBlock,
)
from fastmarl.rllib.store.block import OTHER, Outputs, RLlibBlock
from fastmarl.rllib.store.lane_steps import reward_array
from fastmarl.rllib.store.mixed_outputs import as_nested, mixed_outputs, mixed_steps
from fastmarl.rllib.store.records import AgentNumbers, ChunkNumbers, RLlibRecord
from fastmarl.rllib.store.store import RLlibStore

FLOAT64_KINDS = np.zeros(256, bool)  # kinds of rewards that NumPy converts to float64
FLOAT64_KINDS[[0, 1, 4]] = True


@dataclass
class RLlibChunk:
    """An episode chunk to be built."""

    record: RLlibRecord
    env_t: int
    infos: list[tuple[int, int, Any]]
    """(env step, lane, info) tuples."""
    is_running: bool = False
    """True if the chunk continues after it is built."""
    view: Any = None
    """The EpisodeInView passed to callbacks, or None."""
    numbers: ChunkNumbers = field(init=False)

    @property
    def length(self) -> int:
        return self.env_t - self.record.env_t_started


@dataclass(slots=True)
class LaneExtent:
    """Location of the data of a lane in the module columns."""

    columns: ModuleColumns
    rows: tuple[int, int]
    steps: tuple[int, int]
    obs_begin: int
    first_env_t: int
    total: Any
    odd: dict[str, Any] | None


class Builder:
    """Builds chunks from the rows of a store.

    Args:
        store: The store of all rows.
        spaces: Per env, ({agent id: observation space}, {agent id: action space}).
        episode_class: fastmarl.rllib.episodes.episode.MultiAgentEpisode or a subclass.
        fixes: Numbers of the enabled corrections.

    Attributes:
        hanging: Lanes whose agents were waiting for an observation after acting, when find_hanging() was last called.
    """

    def __init__(self, store: RLlibStore, spaces: list[tuple[dict, dict]], episode_class: type, fixes: frozenset[str]):
        self._store = store
        self._spaces = spaces
        self._episode_class = episode_class
        self._memory = ColumnMemory()
        self._true_time_maps = "14" in fixes
        self._structs: dict[tuple[int, Hashable, int], tuple] = {}
        self.hanging: set[int] = set()

    def build(self, chunks: list[RLlibChunk]) -> list[Any]:
        """Build the episodes of chunks, in order, and set the `numbers` of each chunk."""
        lanes = np.array([lane for chunk in chunks for lane in chunk.record.lane_of.values()], np.int64)
        modules_L = self._store.table.module_L[lanes]
        modules: list[ModuleColumns | None] = []
        extents: dict[int, LaneExtent] = {}
        for module, block in enumerate(self._store.blocks):
            of_module = lanes[modules_L == module]
            modules.append(self._gather(block, of_module, extents) if len(of_module) else None)
        metas = [self._chunk_meta(chunk, extents) for chunk in chunks]
        return SampleBlock(modules, metas, self._spaces, self._episode_class, self._structs).episodes()

    # Columns.

    def _gather(self, block: RLlibBlock, lanes: np.ndarray, extents: dict[int, LaneExtent]) -> ModuleColumns:
        """Gather the columns of a module for these lanes, and add the extent of each lane to `extents`."""
        table = self._store.table
        counts, finals = table.count_L[lanes].astype(np.int64), table.final_L[lanes]
        rows = _store.chains(block.prev_R, table.row_L[lanes], counts)
        row_ends, has_final = np.cumsum(counts), finals >= 0
        n_steps = counts + has_final - 1
        step_ends = np.cumsum(n_steps)
        acted = np.ones(len(rows), bool)
        acted[row_ends[~has_final] - 1] = False
        acted_rows = rows[acted]
        obs = partial(self._memory.gather, block.obs, block.final_obs, rows, counts, finals)
        is_much = len(rows) >= ENOUGH * block.n_rows_held  # else episodes would keep a mostly empty block alive
        columns = ModuleColumns(
            layout=block.layout,
            leaves=obs if is_much else obs(),
            env_ts=block.env_t_R.take(rows),
            rewards=block.reward_R.take(acted_rows),
            outputs={key: column.take(acted_rows, axis=0) for key, column in block.outputs.items()},
            seq_nos=block.seq_no_R.take(acted_rows),
        )
        kinds = block.kind_R.take(acted_rows)
        begins = step_ends - n_steps
        totals = np.empty(len(lanes))
        sum_spans(columns.rewards, begins + table.lookback_L[lanes], step_ends, totals)
        has_odd = block.layout.has_objects or len(block.former) > 0 or not FLOAT64_KINDS[kinds].all()
        obs_begins = begins + np.arange(len(lanes))
        bounds = (row_ends - counts, row_ends, begins, step_ends, obs_begins, columns.env_ts[row_ends - counts])
        for lane, total, row_begin, row_end, begin, end, obs_begin, first_env_t in zip(
            lanes.tolist(), list(totals), *(bound.tolist() for bound in bounds), strict=True
        ):
            odd = None
            if has_odd:
                lane_rows, lane_kinds = rows[row_begin:row_end], kinds[begin:end]
                odd = self._odd_columns(block, lane, lane_rows, columns, (begin, end), obs_begin, lane_kinds)
                if odd and "rewards" in odd:
                    total = sum(odd["rewards"][table.lookback_L[lane] :])
            extents[lane] = LaneExtent(columns, (row_begin, row_end), (begin, end), obs_begin, first_env_t, total, odd)
        if block.layout.has_objects:
            columns.leaves = []  # the lanes have separate observations
        return columns

    def _odd_columns(
        self,
        block: RLlibBlock,
        lane: int,
        rows: np.ndarray,
        columns: ModuleColumns,
        steps: tuple[int, int],
        obs_begin: int,
        kinds: np.ndarray,
    ) -> dict[str, Any] | None:
        """Return the columns of a lane that are not slices of the module columns, or None."""
        odd: dict[str, Any] = {}
        begin, end = steps
        if block.layout.has_objects:
            observations = list(columns.obs[0][obs_begin : obs_begin + end - begin + 1])
            newest = int(rows[-1]), int(self._store.table.final_L[lane])
            if block.awaits_connectors(*newest):  # running_episodes.py builds the list; these may not stack
                observations = [block.raw_newest(*newest)]
            odd["observations"] = stacked(observations)
        if not FLOAT64_KINDS[kinds].all():
            end_env_t = int(self._store.table.end_env_t_L[lane])
            odd["rewards"] = reward_array(block, rows, columns.rewards[begin:end], kinds, end_env_t)
        if end > begin and (acted := mixed_steps(block, rows[: end - begin + (lane in self.hanging)])):
            lookback = int(self._store.table.lookback_L[lane])
            odd["actions"], odd["extras"] = mixed_outputs(acted[: end - begin], lookback)
        return odd or None

    # Attributes of chunks and agents.

    def _chunk_meta(self, chunk: RLlibChunk, extents: dict[int, LaneExtent]) -> ChunkMeta:
        record = chunk.record
        clock = (record.started_at, record.last_step_at or perf_counter())
        carried = [agent_id for agent_id in record.map_order if agent_id in record.carried]
        meta = ChunkMeta(
            id_=record.id_,
            env_index=record.env_index,
            mapping_fn=record.policy_mapping_fn,
            env_t_started=record.env_t_started,
            env_t=chunk.env_t,
            lookback=record.lookback,
            flags=(record.is_terminated, record.is_truncated),
            mapping=record.mapping,
            unobserved_rewards=record.unobserved_rewards,
            custom_data=deepcopy(record.custom_data) if record.custom_data else {},
            clock=clock,
            map_order=carried and [*carried, *(a for a in record.lane_of if a not in record.carried)],
        )
        numbers = ChunkNumbers(chunk.length, clock[1] - clock[0], {})
        infos: defaultdict[int, dict[int, Any]] = defaultdict(dict)  # lane -> env step -> info
        for env_t, lane, info in chunk.infos:
            infos[lane][env_t] = info
        now = self._store.scatter.lanes_now(list(record.lane_of.values())).tolist()
        for (agent_id, lane), lane_now in zip(record.lane_of.items(), now, strict=True):
            extent = extents[lane]
            n_steps = extent.steps[1] - extent.steps[0]
            agent = self._agent_meta(chunk, agent_id, lane, lane_now, extent, infos.get(lane))
            meta.agents.append(agent)
            if agent_id in record.carried or n_steps:
                meta.agent_t_started[agent_id] = agent.t_started
            if lane in self.hanging:
                acted = mixed_steps(self._store.blocks[agent.module], self._store.acted_rows_of(lane))
                meta.hanging[agent_id] = self.hanging_outputs(lane, acted[-1] if acted else None)
            if agent.agent_episode_id is not None:
                n_completed = n_steps - agent.lookback
                numbers.agents[agent_id] = AgentNumbers(agent_id, agent.module_id, n_completed, extent.total)
        chunk.numbers = numbers
        return meta

    def _agent_meta(
        self,
        chunk: RLlibChunk,
        agent_id: Hashable,
        lane: int,
        lane_now: list[int],
        extent: LaneExtent,
        infos: dict[int, Any] | None,
    ) -> AgentMeta:
        record = chunk.record
        _, _, lookback, t_started, final, end_env_t, _, module = lane_now
        n_steps = extent.steps[1] - extent.steps[0]
        # RLlib pads the times of an agent that joins a later chunk as if the chunk began with the episode.
        joined = extent.first_env_t > record.env_t_started
        offset = 0 if joined and not self._true_time_maps else record.lookback - record.env_t_started
        length, final_place, unseen = chunk.env_t + offset + 1, -1, lane in record.unseen
        if final >= 0:
            # RLlib has two entries for the last step of an agent that ended unobserved.
            final_place = end_env_t + offset + unseen
            length += unseen
        return AgentMeta(
            agent_id,
            module,
            record.mapping[agent_id],
            record.agent_episode_ids[agent_id] if n_steps > lookback or chunk.is_running else None,
            extent.rows,
            extent.steps,
            extent.obs_begin,
            lookback,
            t_started,
            record.flags.get(lane, (record.is_terminated, record.is_truncated)),  # default: falsy, in the env's type
            (length, offset, t_started - lookback, final_place),
            None if infos is None else self._agent_infos(infos, lane, extent, unseen),
            extent.odd,
            self._store.spaces.get(lane),
        )

    def _agent_infos(self, infos: dict[int, Any], lane: int, extent: LaneExtent, unseen: bool) -> list:
        table = self._store.table
        env_ts = extent.columns.env_ts[slice(*extent.rows)].tolist()
        if table.final_L[lane] >= 0:
            env_ts.append(env_ts[-1] if unseen else int(table.end_env_t_L[lane]))
        return [infos.get(env_t, {}) for env_t in env_ts]

    # Agents waiting for an observation after acting.

    def find_hanging(self) -> None:
        """Find the lanes whose agents are waiting for an observation after acting."""
        table, acting_from = self._store.table, np.array(self._store.acting_from)
        live = table.live_lanes(range(len(table.envs)))
        self.hanging = set(live[table.row_L[live] < acting_from[table.module_L[live]]].tolist())

    def hanging_outputs(self, lane: int, outputs: Outputs | None = None) -> tuple[Any, dict[str, Any] | None, Any]:
        """Return the action, other outputs, and accumulated reward of a waiting agent.

        Args:
            lane: Lane of the agent.
            outputs: The outputs completed for the RLlib episode, or None for the original module outputs.
        """
        module, row = int(self._store.table.module_L[lane]), int(self._store.table.row_L[lane])
        block = self._store.blocks[module]
        actions, extras = as_nested(block.acted_with(row) if outputs is None else outputs)
        acted_before = row < self._store.first_action[module]
        kind = int(block.kind_R[row])
        reward = block.others[row][0] if kind == OTHER else as_object(float(block.reward_R[row]), kind)
        # Without other outputs, RLlib stores an empty dict after a cut, and None before it.
        return actions, extras or ({} if acted_before else None), reward


SMALL = 1 << 16  # bytes; up to this size, new memory costs no more than reused memory


class ColumnMemory:
    """Gathers rows into arrays whose memory is reused after the last view of them is freed."""

    def __init__(self) -> None:
        self._ring = MemoryRing()

    def gather(
        self,
        leaves: list[np.ndarray],
        final_leaves: list[np.ndarray],
        rows: np.ndarray,
        counts: np.ndarray,
        finals: np.ndarray,
    ) -> list[np.ndarray]:
        """Gather the rows of several lanes, lane by lane, each followed by the final observation of the lane.

        Args:
            leaves, final_leaves: [capacity, *shape] each, in pairs of the same dtype.
            rows: int64 [n], the rows of all lanes, lane by lane.
            counts: int64 [lanes], number of rows of each lane.
            finals: int64 [lanes], index of the final observation of each lane, or -1.

        Returns:
            [n + number of final observations, *shape] for each leaf.
        """
        n = len(rows) + int((finals >= 0).sum())
        arrays = self._arrays([((n, *leaf.shape[1:]), leaf.dtype) for leaf in leaves])
        return [
            compiled.with_finals(leaf, final_leaf, rows, counts, finals, out)
            for leaf, final_leaf, out in zip(leaves, final_leaves, arrays, strict=True)
        ]

    def _arrays(self, wanted: list[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
        """Return uninitialised arrays of these shapes and dtypes; object arrays do not use the pool."""
        n_bytes = [0 if dtype.hasobject else math.prod(shape) * dtype.itemsize for shape, dtype in wanted]
        if sum(n_bytes) < SMALL:
            return [np.empty(shape, dtype) for shape, dtype in wanted]
        memory, lease = self._ring.lend(sum(n_bytes))
        arrays = []
        for i, (shape, dtype) in enumerate(wanted):
            if dtype.hasobject:
                arrays.append(np.empty(shape, dtype))
                continue
            buffer = memory.arrays.get(i)
            if buffer is None or len(buffer) < n_bytes[i]:
                # One quarter extra, in case the next call needs more.
                buffer = memory.arrays[i] = np.empty(n_bytes[i] + n_bytes[i] // 4, np.uint8)
                memory.size = sum(map(len, memory.arrays.values()))
            arrays.append(np.asarray(LeasedArray(buffer, lease))[: n_bytes[i]].view(dtype).reshape(shape))
        return arrays
