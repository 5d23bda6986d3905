"""Everything that is recorded: the modules' blocks, the lanes, the episodes under way and those just finished.

One call of `sample()` fills one block per module. `cut()` ends the call: it makes the running episodes' chunks and
begins new blocks with what the next call needs of the old ones (see docs/data_path.md).
"""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.connectors.module_connectors import ModuleConnectors
from fastmarl.connectors.rewards import RewardConnector
from fastmarl.episodes.chunks import UnreadChunks
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.episodes.summaries import CallSummary, summary_of
from fastmarl.errors import ModuleOutputError
from fastmarl.kernels.accumulate import accumulate
from fastmarl.native import _store
from fastmarl.native._records import EpisodeRecord, episode_id, next_chunks, open_all, settle_all, steps_by_agent
from fastmarl.native._scatter import ModuleRows, Scatter
from fastmarl.record.agent_spaces import AgentSpaces
from fastmarl.record.block import Block, Key, MemoryPool, OutputFormError
from fastmarl.record.env_states import EnvStates
from fastmarl.record.lanes import LaneTable
from fastmarl.spaces import RowLayout

ASLEEP: Any = None  # in place of the block of a module that has no agents


class EpisodeStore:
    """Records the steps of all envs.

    Args:
        layouts: per module index, the layout of its recorded observations.
        module_ids: per module index.
        table: the lanes.
        spaces_of: (env index, agent id) -> (observation space, action space), asked when agents join.
        lookback: env steps of history that a chunk carries over from the one before.
        env_states: the recorded global states of each env; empty: none are recorded.
        connectors: per module index, what makes the recorded observations; () if there is none.
        rewards: what makes the recorded rewards; None: they are those paid.
        max_summaries: so many of the episodes that end in a call are summed up, the last ones.

    Attributes:
        spaces: of the agents that have joined.
        connects: whether observations go through connectors into the record.
        awake: module indices, ascending, of those that have a block. One gets it with its first agent, and loses it
            when a call has passed in which it had none: modules that don't act cost neither time nor memory.
        on_wake: called with the module index when one gets it.
        taken_back: (env steps, actions) of the last `take_back()`.
    """

    def __init__(
        self,
        layouts: list[RowLayout],
        module_ids: list[str],
        table: LaneTable,
        spaces_of: Callable[[int, Hashable], tuple[gym.Space, gym.Space]],
        lookback: int,
        *,
        env_states: Sequence[EnvStates] = (),
        connectors: Sequence[ModuleConnectors | None] = (),
        rewards: RewardConnector | None = None,
        max_summaries: int = 1,
    ):
        self.table = table
        self.module_ids = module_ids
        self._layouts = layouts
        self._connectors = list(connectors) or [None] * len(layouts)
        self._rewards = rewards
        self._max_summaries = max_summaries
        self.connects = _any_records(self._connectors)
        self.spaces = AgentSpaces(table, spaces_of)
        self._env_states = env_states
        self._lookback_E = np.full(len(table.envs), lookback, np.int32)
        self._pools = [MemoryPool() for _ in layouts]
        self.rows = [ModuleRows() for _ in layouts]
        self.scatter = self._make_scatter()
        self.awake: list[int] = []
        self.on_wake: Callable[[int], None] = lambda module: None
        self.blocks = [ASLEEP] * len(layouts)
        self.acting_from = [0] * len(layouts)  # per module: its agents act next upon the rows from here on
        self._first_action = [0] * len(layouts)  # acting_from at the call's begin
        self._stamped = [0] * len(layouts)
        self._actions_taken_back: Counter[int] = Counter()  # by module: that don't count among those of the call
        self.taken_back = 0, 0
        self._run_id = uuid.uuid4().hex[:20]
        self._n_ids = 0
        self._ended_chunks: list[MultiAgentEpisode] = []
        self._unread = UnreadChunks()
        self._n_finished = 0  # episodes in this call
        self._to_sum_up: list[EpisodeRecord] = []  # the last of them
        self._spare_records: list[EpisodeRecord] = []
        self._dropped_lanes: list[int] = []

    def _make_scatter(self) -> Scatter:
        return Scatter(self.table, self._grow, self.rows)

    def _make_block(self, module: int) -> Block:
        layout, raw_layout = self.layouts_of(module)
        return Block(layout, self._pools[module], self.rows[module], raw_layout, self._rewards)

    def _grow(self, module: int, finals: bool) -> None:
        """There is no room for one more row (or final observation)."""
        if self.blocks[module] is ASLEEP:
            self.wake(module)
        else:
            self.blocks[module].grow(finals)

    # Modules come, act, rest and go.

    def put_module(self, module: int, module_id: str, connectors: ModuleConnectors) -> None:
        """Have a module at an index, which is the next one or was freed."""
        if module == len(self.rows):
            self.rows.append(ModuleRows())
            self.blocks.append(ASLEEP)
            for places in (self.acting_from, self._first_action, self._stamped):
                places.append(0)
        self._layouts = [*self._layouts[:module], connectors.recorded_layout, *self._layouts[module + 1 :]]
        self._connectors = [*self._connectors[:module], connectors, *self._connectors[module + 1 :]]
        self.connects = _any_records(self._connectors)
        self._pools = [*self._pools[:module], MemoryPool(), *self._pools[module + 1 :]]
        # A new list: chunks that were made before know the former module at this index by its own name.
        self.module_ids = [*self.module_ids[:module], module_id, *self.module_ids[module + 1 :]]

    def layouts_of(self, module: int) -> tuple[RowLayout, RowLayout | None]:
        """Of the observations on record, and of those that envs send, where connectors make others of these."""
        connectors = self._connectors[module]
        return self._layouts[module], None if connectors is None else connectors.raw_layout

    def wake(self, module: int) -> None:
        """Have room for a module's rows."""
        self.blocks[module] = self._make_block(module)
        self.awake = sorted([*self.awake, module])
        self.on_wake(module)

    def lay_to_rest(self, module: int) -> None:
        """Give back what a module without agents holds, at the end of a call; its index may then be used again."""
        if self.blocks[module] is not ASLEEP:
            self.awake = [other for other in self.awake if other != module]
            self.blocks[module] = ASLEEP
            self.rows[module] = ModuleRows()  # the old ones point into the block
            self._pools[module] = MemoryPool()
            self.acting_from[module] = self._first_action[module] = self._stamped[module] = 0

    # In every tick.

    def open_episodes(self, env_indices: list[int]) -> None:
        """These envs are about to be reset: what comes next for each is a new episode."""
        table, now = self.table, time.perf_counter()
        open_all(table.records, table.envs, env_indices, self._spare_records, self._run_id, self._n_ids + 1, now)
        self._n_ids += len(env_indices)
        if self._env_states:
            for env_index in env_indices:
                self._env_states[env_index].begin_episode()

    def new_id(self) -> str:
        """32 hexadecimal digits, different from all others."""
        self._n_ids += 1
        return episode_id(self._run_id, self._n_ids)

    def connect(self) -> None:
        """Let the connectors make the recorded observations of those that have come since the last time."""
        for module in self.awake:
            connectors = self._connectors[module]
            if connectors is not None and connectors.raw_layout is not None:
                connectors.record(self.blocks[module])

    def record(self, module: int, outputs: dict[Key, np.ndarray]) -> None:
        """Store a module's answers to the rows from `acting_from[module]` on.

        Raises:
            ModuleOutputError: an output has another dtype, shape or structure than in the rows before.
        """
        first = self.acting_from[module]
        try:
            self.blocks[module].record(first, self.rows[module].n - first, outputs)
        except OutputFormError as problem:
            raise ModuleOutputError(self.module_ids[module], str(problem)) from None

    def advance(self) -> int:
        """All agents have acted; what is written from now on is the next tick's. Returns the number of actions."""
        actions = 0
        for module in self.awake:
            n = self.rows[module].n
            actions += n - self.acting_from[module]
            self.acting_from[module] = n
        return actions

    def stamp(self, seq_no: int) -> None:
        """Say which weights have acted since the last stamp: it is recorded with every action."""
        for module in self.awake:
            self.blocks[module].seq_no_R[self._stamped[module] : self.acting_from[module]] = seq_no
        self._stamped = list(self.acting_from)

    # When episodes end, and at the end of a call.

    def finish_episodes(self, env_indices: list[int], flags: list[int]) -> list[str]:
        """These envs have said `__all__`: close their episodes and last chunks. Returns the episodes' ids."""
        table, unread, first = self.table, self._unread, len(self._unread)
        self._before_notes(unread, env_indices)
        records = unread.add_finished(table.records, table.envs, env_indices, flags, time.perf_counter())
        for record in records:
            if record.early_rewards:
                table.unattributed_reward += sum(record.early_rewards.values())
        self._n_finished += len(records)
        self._to_sum_up += records
        too_many = max(0, len(self._to_sum_up) - self._max_summaries)
        for record in self._to_sum_up[:too_many]:
            self._dropped_lanes += record.ended
        self._spare_records += self._to_sum_up[:too_many]
        del self._to_sum_up[:too_many]
        return unread.ids[first:]

    def ended_chunks(self) -> list[MultiAgentEpisode]:
        """The chunks that have ended in this call, in order; they can be read from now on."""
        self._seal(self._unread)
        self._ended_chunks += self._unread.take()
        self._unread = UnreadChunks()
        return self._ended_chunks

    def drop_episode(self, env_index: int) -> None:
        """Forget the running episode, if there is one."""
        record = self.table.records[env_index]
        env = self.table.envs[env_index]
        if record is not None:
            self._dropped_lanes += [*record.ended, *env.lane_of.values()]
            self.table.records[env_index] = None
        env.clear()

    def take_back(self, env_index: int, *, whole_chunk: bool) -> None:
        """Don't count the step that an env was told to make and has not; nor the others that this call has recorded in
        its current chunk, if that is to be discarded. `taken_back` tells how many."""
        table, record = self.table, self.table.records[env_index]
        env = table.envs[env_index]
        n_actions = 0
        for lane in record.lanes if whole_chunk and record else env.lane_of.values():
            if table.row_L[lane] < 0:
                continue  # interrupted while it joined
            module, n = int(table.module_L[lane]), int(table.count_L[lane] - table.lookback_L[lane])
            block = self.blocks[module]
            rows, _ = _store.chain(block.prev_R, int(table.row_L[lane]), n if whole_chunk else 1)
            has_acted = (rows >= self._first_action[module]) & (rows < self.acting_from[module])
            if not whole_chunk:
                has_acted &= block.env_t_R[rows] == env.env_t
            n_taken = int(np.count_nonzero(has_acted))
            table.actions_L[lane] -= n_taken
            self._actions_taken_back[module] += n_taken
            n_actions += n_taken
        self.taken_back = 1 + (env.env_t - record.env_t_started if whole_chunk and record else 0), n_actions

    def split_respawned(self) -> None:
        """End chunks of which an agent has respawned in this step: a chunk holds one trajectory of an agent."""
        for env_index in sorted(self.table.respawned):
            record = self.table.record(env_index)
            self._ended_chunks += [*self._unread.take(), self.running_chunk(env_index)]
            joining, record.joining = record.joining, ()
            for module in self.awake:
                lanes, _, counts = self._carried(module, self.table.live_lanes([env_index]))
                self._open_chunk(lanes, counts)
            record.lanes += joining
            self._next_chunks([record])
        self.table.respawned.clear()

    def running_chunk(self, env_index: int) -> MultiAgentEpisode:
        """The running episode's chunk as recorded up to now."""
        unread = UnreadChunks()
        self._note_running(unread, [env_index])
        self._seal(unread)
        respawned = [self.table.agent_ids[lane] for lane in self.table.record(env_index).joining]
        # Now: agents that wait may be paid more.
        return MultiAgentEpisode(**unread.arguments(0, unread.own[0]), respawned=respawned)

    def opened_chunk(self, env_index: int) -> MultiAgentEpisode:
        """The running episode before its agents have joined: what mapping functions are given."""
        record = self.table.record(env_index)
        if record.opened is None:
            record.opened = MultiAgentEpisode(
                id_=record.id_, agent_episodes={}, env_t_started=0, env_t=0, custom_data=record.custom_data
            )
        return record.opened

    def finished_chunks(self) -> list[MultiAgentEpisode]:
        """The chunks of those episodes that have finished in this call, in order."""
        chunks = self.ended_chunks()
        finished = {chunk.id_ for chunk in chunks if chunk.is_done}
        return [chunk for chunk in chunks if chunk.id_ in finished]

    def end_chunks(self) -> list[MultiAgentEpisode]:
        """End the call's chunks: finished ones in order of finishing, then the running episodes' in env order."""
        table = self.table
        running = [record for record in table.records if record is not None]
        stepped = [each.env_index for each in running if table.envs[each.env_index].env_t > each.env_t_started]
        self._note_running(self._unread, stepped)
        return self.ended_chunks()

    def end_call(self) -> None:
        """Prepare the next call, after `sum_up()`; modules that had no rows in this one rest."""
        idle = [module for module in self.awake if not self.rows[module].n]
        self.renew()
        for module in idle:
            self.lay_to_rest(module)

    def renew(self) -> None:
        """Begin new blocks with what the running episodes need of the old ones."""
        live = self.table.live_lanes(range(len(self.table.envs)))
        for module in self.awake:
            self._renew_block(module, live)
        self.begin_actions()
        running = [record for record in self.table.records if record is not None]
        self._settle_ended(running)
        self._next_chunks(running)
        self._renew_env_states()
        self.table.release(self._dropped_lanes)
        self._ended_chunks, self._to_sum_up, self._dropped_lanes = [], [], []
        self._n_finished = 0

    def begin_actions(self) -> None:
        """Actions count from here on."""
        self._first_action, self._stamped = list(self.acting_from), list(self.acting_from)

    # The global states of running episodes, at the end of a call.

    def kept_states(self, env_index: int) -> np.ndarray | None:
        """[n, ...], those that the next chunk will have of steps before it; None: none are recorded."""
        return self._env_states[env_index].kept() if self._env_states else None

    def check_states(self, env_index: int, states: Any) -> None:
        """Raises ConfigError if these are none for `put_states()`."""
        if self._env_states:
            self._env_states[env_index].check(states)

    def put_states(self, env_index: int, states: np.ndarray, env_t: int) -> None:
        """What `kept_states()` has given in env step `env_t`."""
        if self._env_states:
            self._env_states[env_index].put(states, env_t)

    def _before_notes(self, unread: UnreadChunks, env_indices: list[int]) -> None:
        """The chunks of these envs are to be noted next."""
        if self.connects:
            self.connect()
        if self._env_states:
            for place, env_index in enumerate(env_indices, len(unread)):
                unread.env_states[place] = self._states_of_chunk(self.table.record(env_index))

    def _note_running(self, unread: UnreadChunks, env_indices: list[int]) -> None:
        self._before_notes(unread, env_indices)
        unread.add_running(self.table.records, self.table.envs, env_indices, time.perf_counter())

    def _seal(self, unread: UnreadChunks) -> None:
        table, blocks = self.table, tuple(self.blocks)
        unread.seal(self.scatter, table.agent_ids, table.spaces, blocks, self.module_ids, self.acting_from)

    def _states_of_chunk(self, record: EpisodeRecord) -> np.ndarray:
        env_t = self.table.envs[record.env_index].env_t
        return self._env_states[record.env_index].last(env_t - record.env_states_from + 1)

    def _renew_env_states(self) -> None:
        for env_index, states in enumerate(self._env_states):
            record = self.table.records[env_index]
            states.renew(0 if record is None else self.table.envs[env_index].env_t - record.env_states_from + 1)

    def sum_up(self) -> CallSummary:
        """What the call has recorded, in numbers; to be asked once."""
        table, summary = self.table, CallSummary()
        for module in self.awake:
            block, rows = self.blocks[module], self.rows[module]
            reward_R, lane_R = block.reward_R[: rows.n], block.lane_R[: rows.n]
            actions = self._first_action[module], self.acting_from[module]
            ends = table.row_L, table.final_L
            sums = table.return_L, table.steps_L, table.actions_L
            accumulate(reward_R, lane_R, block.lookback_R, *actions, *ends, *sums)
            module_id = self.module_ids[module]
            n_actions = actions[1] - actions[0] - self._actions_taken_back[module]
            summary.module_steps[module_id] = summary.module_steps.get(module_id, 0) + n_actions
        summary.agent_steps = steps_by_agent(table.agent_ids, table.actions_L)
        table.actions_L[:] = 0
        self._actions_taken_back.clear()
        self._settle_ended(self._to_sum_up)
        summary.num_episodes = self._n_finished
        summary.episodes = [summary_of(record, self.module_ids) for record in self._to_sum_up]
        summary.unattributed_reward = table.unattributed_reward
        table.unattributed_reward = 0.0
        return summary

    def _settle_ended(self, records: list[EpisodeRecord]) -> None:
        """Add the ended lanes' sums to the episodes', and give the lanes back."""
        table = self.table
        self._dropped_lanes += settle_all(records, table.agent_ids, table.module_L, table.return_L, table.steps_L)

    def _next_chunks(self, records: list[EpisodeRecord]) -> None:
        """The episodes go on in new chunks, with the lanes that live."""
        table = self.table
        next_chunks(records, table.envs, self._lookback_E, table.done_L)
        for record in records:
            env = table.envs[record.env_index]
            if self._env_states:
                acted_at = (self.blocks[table.module_L[lane]].env_t_R[table.row_L[lane]] for lane in record.lanes)
                record.env_states_from = min([env.env_t - record.lookback, *map(int, acted_at)])
            if env.infos:
                env.infos = self._infos_for_next(record)

    def _infos_for_next(self, record: EpisodeRecord) -> list[tuple[int, int, dict]]:
        """The infos that the episode's next chunk needs of those up to now."""
        table, env = self.table, self.table.envs[record.env_index]
        since = env.env_t - int(self._lookback_E[record.env_index])
        kept_from = {-1: since}
        for lane in record.lanes:
            block = self.blocks[table.module_L[lane]]
            rows, _ = _store.chain(block.prev_R, int(table.row_L[lane]), int(table.count_L[lane]))
            kept_from[lane] = min(since, int(block.env_t_R[rows[0]]))
        return [info for info in env.infos if info[0] >= kept_from.get(info[1], env.env_t + 1)]

    def _carried(self, module: int, live: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(the live lanes of a module, their rows for the next chunk, how many of each): see _store.carried()."""
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
        """int32: the env step with which each of these lanes' lookback begins, for the next chunk."""
        env_t_E = np.array([env.env_t for env in self.table.envs], np.int32)
        return (env_t_E - self._lookback_E)[self.table.env_L[lanes]]

    def _open_chunk(self, lanes: np.ndarray, counts: np.ndarray) -> None:
        """Let a chunk of these lanes begin with their last row; `counts` rows (int32) with lookback."""
        table = self.table
        table.t_started_L[lanes] += table.count_L[lanes] - table.lookback_L[lanes] - 1
        table.count_L[lanes] = counts
        table.lookback_L[lanes] = counts - 1

    def _renew_block(self, module: int, live: np.ndarray) -> None:
        """Copy the carried rows to a new block, in their order; those that wait for an action come last."""
        table, old = self.table, self.blocks[module]
        lanes, rows, counts = self._carried(module, live)
        order = np.argsort(rows)
        n_waiting = int(np.count_nonzero(rows >= self.acting_from[module]))
        block = self._make_block(module)
        block.take(old, rows[order])
        place = np.empty_like(order)  # of each carried row in the new block; rows are grouped by lane, last to first
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


def _any_records(connectors: Sequence[ModuleConnectors | None]) -> bool:
    return any(each is not None and each.raw_layout is not None for each in connectors)
