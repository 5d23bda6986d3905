"""A runner's episodes: how they begin and end, and who is told of it."""

import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

from fastmarl.acting.policies import Policies
from fastmarl.config import EnvRunnerConfig
from fastmarl.episodes.log import EpisodeLog
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.modules import MultiRLModule
from fastmarl.native._records import note_reset_seeds
from fastmarl.record.flags import FAILED
from fastmarl.record.lanes import LaneTable
from fastmarl.record.store import RowStore
from fastmarl.runner.goals import Goal
from fastmarl.runner.metrics import MetricsLogger, RunnerMetrics
from fastmarl.seeds import ResetSeeds

MOST_REMEMBERED = 100_000  # env steps of a running episode, for on_episode_end: it may never end


class RunnerEpisodes:
    """The methods of a runner that begin and end episodes."""

    config: EnvRunnerConfig
    env: Any
    module: MultiRLModule
    metrics: MetricsLogger
    _counts: RunnerMetrics
    _earlier_chunks: dict[str, list[MultiAgentEpisode]]
    _goal: Goal
    _listeners: dict[str, tuple[Callable[..., Any], ...]]
    _policies: Policies
    _seeds: ResetSeeds
    _log: EpisodeLog
    _store: RowStore
    _table: LaneTable
    _to_reset: set[int]
    _has_forgotten = False

    def _stamp_actions(self) -> None:
        raise NotImplementedError

    def _after_step(self, env_indices: list[int], flags: list[int]) -> None:
        """Steps of these envs are recorded (or have failed): tell who listens; close the episodes that are over."""
        begun = perf_counter()
        if len(env_indices) == 1 or self._listeners["on_episode_step"] or self._listeners["on_episode_end"]:
            for env_index, all_done in zip(env_indices, flags, strict=True):
                self._after_env_step(env_index, all_done)
        else:
            self._end_episodes(env_indices, flags)
        self._counts.seconds["after_step"] += perf_counter() - begun

    def _after_env_step(self, env_index: int, all_done: int) -> None:
        if all_done & FAILED:
            self._goal.take_back(env_index, *self._store.taken_back)
        elif self._listeners["on_episode_step"]:
            self._call_for_env("on_episode_step", env_index, self._log.running_chunk(env_index))
        if all_done == FAILED:
            self._store.drop_episode(env_index)
            self._to_reset.add(env_index)
            self._goal.begin_another(env_index)
        elif all_done:
            self._end_episodes([env_index], [all_done])

    def _end_episodes(self, env_indices: list[int], flags: list[int]) -> None:
        """Close these envs' episodes."""
        ids = self._log.finish_episodes(env_indices, flags)
        self._goal.finished_ids.update(zip(ids, env_indices, strict=True))
        self._to_reset.update(env_indices)
        if self._listeners["on_episode_end"]:
            for env_index, chunk in zip(env_indices, self._log.ended_chunks()[-len(env_indices) :], strict=True):
                earlier = self._earlier_chunks.pop(chunk.id_, [])
                self._call_for_env("on_episode_end", env_index, chunk, prev_episode_chunks=earlier)

    def _begin_next(self, goal: Goal) -> None:
        """Begin episodes where others have ended, if there are to be more."""
        self._reset_envs(goal.begin(sorted(self._to_reset)))

    def _reset_envs(self, env_indices: list[int]) -> None:
        """Begin episodes in these envs; others that have none rest."""
        begun = perf_counter()
        self._to_reset.difference_update(env_indices)
        if self._to_reset:
            self.env.rest(self._to_reset)
        for together in [[i] for i in env_indices] if self._listeners["on_episode_created"] else [env_indices]:
            self._log.open_episodes(together)
            self._policies.begin_episodes(together, self.config.policy_mapping_fn)
            if self._listeners["on_episode_created"]:
                (env_index,) = together
                self._call_for_env("on_episode_created", env_index, self._log.running_chunk(env_index))
        self.env.reset(env_indices)
        note_reset_seeds(self._table.records, self._seeds.last, env_indices)
        if self._listeners["on_episode_start"]:
            for env_index in env_indices:
                self._call_for_env("on_episode_start", env_index, self._log.running_chunk(env_index))
        self._counts.reset_seconds += perf_counter() - begun

    def _rescue_into(self, kept: list[MultiAgentEpisode]) -> None:
        """The call has failed: add the episodes that have finished, if they are not there yet."""
        self._policies.leave_modes()
        self._stamp_actions()
        known = set(map(id, kept))
        kept += [chunk for chunk in self._log.finished_chunks() if id(chunk) not in known]

    def _drop_begun(self, env_indices: set[int]) -> None:
        """Drop the running episodes of which a step was made, or whose policies are not those that it would have now,
        and those of other envs than these, which take no part in this call."""
        mapping_fn = self.config.policy_mapping_fn
        for env_index, lanes in enumerate(self._table.envs):
            if self._table.records[env_index] is None:
                continue
            if lanes.env_t or env_index not in env_indices or self._policies.is_outdated(env_index, mapping_fn):
                self._store.drop_episode(env_index)
                self._to_reset.add(env_index)

    # Callbacks.

    def _call(self, event: str, **arguments: Any) -> None:
        for listener in self._listeners[event]:
            listener(env_runner=self, metrics_logger=self.metrics, **arguments)

    def _call_for_env(self, event: str, env_index: int, episode: MultiAgentEpisode, **arguments: Any) -> None:
        if not self._listeners[event]:
            return
        self._stamp_actions()
        self._call(event, episode=episode, env=self.env, env_index=env_index, rl_module=self.module, **arguments)
        self._policies.may_differ = True

    def _remember(self, samples: list[MultiAgentEpisode]) -> None:
        """Keep the chunks of running episodes, for those who are told of an episode's end."""
        if self._listeners["on_episode_end"]:
            for chunk in samples:
                if not chunk.is_done:
                    self._remember_chunk(chunk)
            running = {record.id_ for record in self._table.records if record is not None}
            self._earlier_chunks = {id_: kept for id_, kept in self._earlier_chunks.items() if id_ in running}

    def _remember_chunk(self, chunk: MultiAgentEpisode) -> None:
        earlier = self._earlier_chunks.setdefault(chunk.id_, [])
        earlier.append(chunk)
        while len(earlier) > 1 and chunk.env_t - earlier[0].env_t_started > MOST_REMEMBERED:
            if not self._has_forgotten:
                self._has_forgotten = True
                warnings.warn(
                    f"on_episode_end will be given the chunks of the last {MOST_REMEMBERED} env steps of an episode "
                    f"only: one has more, and may never end; sum up what you need in on_sample_end",
                    RuntimeWarning,
                    stacklevel=2,
                )
            del earlier[0]
