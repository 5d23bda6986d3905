"""Log of the standalone runner's episodes: builds chunks from rows and sums up returns and steps."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from fastmarl.core.episodes.chunk import ENV_INDEX, ENV_T, FLAGS, UnreadChunks
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.summaries import CallSummary, summary_of
from fastmarl.core.native._garbage import without_collection
from fastmarl.core.native._records import EpisodeRecord, open_all, settle_all, steps_by_agent
from fastmarl.core.store.env_states import EnvStates
from fastmarl.core.store.lanes import TERMINATED, TRUNCATED, EpisodeIds
from fastmarl.core.store.store import RowStore


class Clock:
    """A stopwatch that accumulates the seconds between `start()` and `stop()`."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._started_at: float | None = None

    def start(self) -> None:
        """Start counting, or continue if already running."""
        if self._started_at is None:
            self._started_at = perf_counter()

    def stop(self) -> None:
        """Stop until the next `start()`."""
        self._elapsed, self._started_at = self.now(), None

    def now(self) -> float:
        """Return the seconds counted so far."""
        return self._elapsed + (0.0 if self._started_at is None else perf_counter() - self._started_at)


class EpisodeLog:
    """Tracks the chunks that `sample()` calls fill and computes their statistics.

    Args:
        store: The recorded rows.
        env_states: The recorded global states of each env; empty if none are recorded.
        max_summaries: Maximum number of episodes to summarise per call; the last ones to finish are kept.

    Attributes:
        store: The recorded rows.
        clock: Measures the durations of episodes; runs during `sample()` calls.
        sealed: The notes of the chunks that `ended_chunks()` returns.
    """

    def __init__(self, store: RowStore, *, env_states: Sequence[EnvStates] = (), max_summaries: int = 1):
        self.store = store
        self._env_states = env_states
        self._max_summaries = max_summaries
        self._ids = EpisodeIds()
        self._ended_chunks: list[MultiAgentEpisode] = []
        self._unread = UnreadChunks()
        self.sealed: list[UnreadChunks] = []
        self.clock = Clock()
        self._n_finished = 0  # episodes finished in this call
        self._to_sum_up: list[EpisodeRecord] = []  # the last `max_summaries` of them
        self._spare_records: list[EpisodeRecord] = []

    # Start and end of episodes

    def open_episodes(self, env_indices: list[int]) -> None:
        """Open a new episode for each of these envs before they are reset."""
        table, ids, n = self.store.table, self._ids, len(env_indices)
        now = self.clock.now()
        open_all(table.records, table.envs, env_indices, self._spare_records, ids.run_id, ids.reserve(n), now)
        if self._env_states:
            for env_index in env_indices:
                self._env_states[env_index].begin_episode()

    def finish_episodes(self, env_indices: list[int], flags: list[int]) -> list[str]:
        """Close the episodes of envs with `__all__` set, including their last chunks; return the episode ids."""
        table, unread, first = self.store.table, self._unread, len(self._unread)
        self._before_notes(unread, env_indices)
        records = unread.add_finished(table.records, table.envs, env_indices, flags, self.clock.now())
        for record in records:
            if record.early_rewards:
                table.unattributed_reward += sum(record.early_rewards.values())
        self._n_finished += len(records)
        self._to_sum_up += records
        too_many = max(0, len(self._to_sum_up) - self._max_summaries)
        for record in self._to_sum_up[:too_many]:
            self.store.ended_lanes += record.ended
        self._spare_records += self._to_sum_up[:too_many]
        del self._to_sum_up[:too_many]
        return unread.ids[first:]

    def split_respawned(self) -> None:
        """End the chunks of envs where an agent respawned in this step; a chunk contains one trajectory per agent."""
        table = self.store.table
        for env_index in sorted(table.respawned):
            record = table.record(env_index)
            self._ended_chunks += [*self._noted(), self.running_chunk(env_index)]
            self.sealed.append(self.notes_of([env_index]))
            joining, record.joining = record.joining, ()
            self.store.split_chunk(env_index)
            record.lanes += joining
            self._next_chunks([record])
            self.sealed.append(self.notes_of([env_index]))  # includes the joining agents, in case the call ends here
        table.respawned.clear()

    # Chunks

    def opened_chunk(self, env_index: int) -> MultiAgentEpisode:
        """Return the running episode without agents, as passed to mapping functions before agents join."""
        record = self.store.table.record(env_index)
        if record.opened is None:
            record.opened = MultiAgentEpisode.of_agents(
                id_=record.id_, agent_episodes={}, env_t_started=0, env_t=0, custom_data=record.custom_data
            )
        opened: MultiAgentEpisode = record.opened
        return opened

    def shown_chunk(self, env_index: int, all_done: int = 0, *, is_private: bool = False) -> MultiAgentEpisode:
        """Return the running chunk, with all of its agents, for callbacks, whose writes are recorded.

        Args:
            all_done: `__all__` flag bits of the step just recorded; 0 if it does not end the episode.
            is_private: If True, writes are not recorded.
        """
        episode, record = self.running_chunk(env_index), self.store.table.record(env_index)
        chunk = episode.chunk
        assert chunk.lanes is not None
        chunk.lanes.is_under_way, chunk.lanes.is_private = True, is_private
        chunk.is_terminated, chunk.is_truncated = bool(all_done & TERMINATED), bool(all_done & TRUNCATED)
        chunk.agent_to_module_mapping_fn = record.policy_mapping_fn
        return episode

    def take_over(self, env_index: int, episode: MultiAgentEpisode) -> None:
        """Apply the id and mapping function that a callback assigned to an episode about to start."""
        record = self.store.table.record(env_index)
        record.id_, record.policy_mapping_fn = episode.id_, episode.agent_to_module_mapping_fn
        record.opened = None

    def running_chunk(self, env_index: int) -> MultiAgentEpisode:
        """Return the chunk of the running episode as recorded so far."""
        unread, table = UnreadChunks(), self.store.table
        self._note_running(unread, [env_index])
        self._seal(unread)
        chunk = unread.read(0, unread.own[0])  # read immediately, since waiting agents may receive more rewards
        if joining := table.record(env_index).joining:
            chunk.respawned = tuple(table.agent_ids[lane] for lane in joining)
            assert chunk.lanes is not None
            columns = self.store.scatter.lanes_now(list(joining))
            chunk.lanes.respawned = replace(chunk.lanes, agent_ids=chunk.respawned, lanes=joining, columns=columns)
        return MultiAgentEpisode.of(chunk)

    def ended_chunks(self) -> list[MultiAgentEpisode]:
        """Return the chunks that ended in this call, in order, and make them readable."""
        self._seal(self._unread)
        self._ended_chunks += self._noted()
        if len(self._unread):
            self.sealed.append(self._unread)
        self._unread = UnreadChunks()
        return self._ended_chunks

    def finished_chunks(self) -> list[MultiAgentEpisode]:
        """Return the chunks of episodes finished in this call, in order."""
        chunks = self.ended_chunks()
        finished = {chunk.id_ for chunk in chunks if chunk.is_done}
        return [chunk for chunk in chunks if chunk.id_ in finished]

    def end_chunks(self) -> list[MultiAgentEpisode]:
        """End and return the chunks of the call: finished ones in finishing order, then running ones by env index."""
        envs = self.store.table.envs
        running = self.store.running()
        stepped = [each.env_index for each in running if envs[each.env_index].env_t > each.env_t_started]
        self._note_running(self._unread, stepped)
        return self.ended_chunks()

    def notes_of(self, env_indices: list[int]) -> UnreadChunks:
        """Return notes of the running episodes of these envs, up to the last completely recorded step.

        This also works after a failed call. Episodes whose reset was not completely recorded are left out. Episodes
        that the env ended get its flags, even if the call failed before closing them.
        """
        notes, table = UnreadChunks(), self.store.table
        begun = [i for i in env_indices if table.envs[i].is_complete or table.envs[i].env_t]
        notes.add_running(table.records, table.envs, begun, self.clock.now())
        for numbers, env_index in zip(notes.numbers, begun, strict=False):
            env = table.envs[env_index]
            numbers[ENV_T] -= not env.is_complete
            numbers[FLAGS] = env.all_done if env.is_complete else 0
        return notes

    def finished_ids(self) -> list[tuple[str, int]]:
        """Return (id, env index) of each episode that finished in this call, in order; call `ended_chunks()` first."""
        numbered = [each for notes in self.sealed for each in zip(notes.ids, notes.numbers.tolist(), strict=False)]
        return [(id_, numbers[ENV_INDEX]) for id_, numbers in numbered if numbers[FLAGS]]

    def ended_envs(self) -> tuple[list[int], list[int]]:
        """Return (indices, `__all__` flags) of envs with a finished episode that has not been closed yet."""
        envs = self.store.table.envs
        running = [record.env_index for record in self.store.running()]
        ended = [i for i in running if envs[i].is_complete and envs[i].all_done]
        return ended, [envs[i].all_done for i in ended]

    # Counts of the current call

    def num_episodes_so_far(self) -> int:
        """Return the number of episodes finished in this call, including those about to be closed."""
        return self._n_finished + len(self.ended_envs()[0])

    def agent_steps_so_far(self) -> dict[Hashable, int]:
        """Return agent id -> number of actions in this call."""
        return steps_by_agent(self.store.table.agent_ids, self.store.actions_so_far())

    def module_steps_so_far(self) -> dict[str, int]:
        """Return module id -> number of actions in this call."""
        return self.store.module_steps_so_far()

    # End of a call

    def sum_up(self) -> CallSummary:
        """Return and reset the statistics of the call; must be called once per `sample()` call."""
        table = self.store.table
        summary = CallSummary(module_steps=self.store.add_up())
        summary.agent_steps = steps_by_agent(table.agent_ids, table.actions_L)
        table.actions_L[:] = 0
        self._settle_ended(self._to_sum_up)
        summary.num_episodes = self._n_finished
        summary.episodes = [summary_of(record, self.store.module_ids) for record in self._to_sum_up]
        summary.unattributed_reward = table.unattributed_reward
        table.unattributed_reward = 0.0
        return summary

    def end_call(self) -> None:
        """Prepare the next call; must follow `sum_up()`. Modules without rows in this call become inactive."""
        store = self.store
        idle = [module for module in store.active if not store.rows[module].n]
        self.renew()
        for module in idle:
            store.deactivate(module)

    def renew(self) -> None:
        """Continue the running episodes in new chunks with new blocks."""
        self.store.renew_blocks()
        running = self.store.running()
        self._settle_ended(running)
        self._next_chunks(running)
        self._renew_env_states()
        self.store.release_lanes()
        self._ended_chunks, self._to_sum_up, self.sealed = [], [], []
        self._n_finished = 0

    def _noted(self) -> list[MultiAgentEpisode]:
        """Return the chunks noted since the last call of this method as episodes, each read on first access."""
        return without_collection(self._unread.take_as, MultiAgentEpisode)

    def _before_notes(self, unread: UnreadChunks, env_indices: list[int]) -> None:
        """Complete the data of these envs before their chunks are noted."""
        if self.store.connects:
            self.store.connect()
        if self._env_states:
            for index, env_index in enumerate(env_indices, len(unread)):
                unread.env_states[index] = self._states_of_chunk(self.store.table.record(env_index))

    def _note_running(self, unread: UnreadChunks, env_indices: list[int]) -> None:
        table = self.store.table
        self._before_notes(unread, env_indices)
        unread.add_running(table.records, table.envs, env_indices, self.clock.now())

    def _seal(self, unread: UnreadChunks) -> None:
        store, table = self.store, self.store.table
        blocks = tuple(store.blocks)
        unread.seal(store.scatter, table.agent_ids, table.spaces, blocks, store.module_ids, store.acting_from)

    def _settle_ended(self, records: list[EpisodeRecord]) -> None:
        """Add the sums of ended lanes to their episodes; release the lanes."""
        table = self.store.table
        self.store.ended_lanes += settle_all(records, table.agent_ids, table.module_L, table.return_L, table.steps_L)

    def _next_chunks(self, records: list[EpisodeRecord]) -> None:
        store, table = self.store, self.store.table
        store.next_chunks(records)
        for record in records if self._env_states else ():
            env_t = table.envs[record.env_index].env_t
            acted_at = (store.blocks[table.module_L[lane]].env_t_R[table.row_L[lane]] for lane in record.lanes)
            record.env_states_from = min([env_t - record.lookback, *map(int, acted_at)])

    # Global states of running episodes

    def kept_states(self, env_index: int) -> np.ndarray | None:
        """Return the earlier states [n, ...] that the next chunk will contain, or None if states are not recorded.

        Must be called at the end of a `sample()` call.
        """
        return self._env_states[env_index].kept() if self._env_states else None

    def check_states(self, env_index: int, states: Any) -> None:
        """Raise ConfigError if `put_states()` cannot restore these states."""
        if self._env_states:
            self._env_states[env_index].check(states)

    def put_states(self, env_index: int, states: np.ndarray, env_t: int) -> None:
        """Restore states that `kept_states()` returned at env step `env_t`."""
        if self._env_states:
            self._env_states[env_index].put(states, env_t)

    def _states_of_chunk(self, record: EpisodeRecord) -> np.ndarray:
        env_t = self.store.table.envs[record.env_index].env_t
        return self._env_states[record.env_index].last(env_t - record.env_states_from + 1)

    def _renew_env_states(self) -> None:
        table = self.store.table
        for env_index, states in enumerate(self._env_states):
            record = table.records[env_index]
            states.renew(0 if record is None else table.envs[env_index].env_t - record.env_states_from + 1)
