"""Calls of `sample()`, and recovery from failed calls."""

from time import perf_counter
from typing import TYPE_CHECKING

from fastmarl.core.episodes.kept_chunks import KeptChunks
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.selection import only_modules
from fastmarl.core.errors import RecordingError
from fastmarl.core.errors.checks import check_bool
from fastmarl.core.store.request import Request
from fastmarl.runner.loop.config_changes import ANY_MAKE, MAKE_ENV, MAKE_MODULE, in_force
from fastmarl.runner.loop.goals import Goal, make_goal
from fastmarl.runner.loop.listeners import Listeners
from fastmarl.runner.loop.resources import Resources
from fastmarl.runner.loop.rollout import Rollout

if TYPE_CHECKING:
    from fastmarl.runner.loop.output import Parcel, ParquetWriter


class Sampling:
    """Samples with the resources of a runner, one call at a time."""

    def __init__(self, resources: Resources, listeners: Listeners):
        self.resources = resources
        self.listeners = listeners
        self.output: ParquetWriter | None = None
        self.unreturned: list[MultiAgentEpisode] = []
        self._unwritten: list[Parcel] = []  # episodes in `unreturned` that are not written yet
        self._kept = KeptChunks()
        self._rescued: list[MultiAgentEpisode] = []  # from a failed call, or from a call about to return
        self.rollout = Rollout(resources, listeners)
        self.is_intact = True

    def make_env(self) -> None:
        """Close the envs and create new ones."""
        resources = self.resources
        config = in_force(resources.config, resources.wanted, MAKE_ENV | ANY_MAKE)
        self.is_intact = False
        resources.make_envs(config)
        self.rollout = Rollout(resources, self.listeners)
        resources.has_envs = self.is_intact = True
        self.announce_envs()

    def make_module(self) -> None:
        """Replace the modules with new ones."""
        resources = self.resources
        config = in_force(resources.config, resources.wanted, MAKE_MODULE | ANY_MAKE)
        was_intact, self.is_intact = self.is_intact, False
        try:
            resources.make_modules(config)
        except Exception:
            self.is_intact = was_intact
            raise
        self.rollout = Rollout(resources, self.listeners)
        self.is_intact = True

    def announce_envs(self) -> None:
        contexts = self.resources.envs.contexts
        self.listeners.call("on_environment_created", env=self.rollout.env, env_context=contexts[0])

    def rebuild_rollout(self) -> None:
        """Rebuild the rollout after a call that did not finish.

        Envs, modules, connector state, random streams and counters are kept; all envs will be reset.
        """
        self.rollout.env.forget()
        self.rollout.policies.leave_modes()
        self.rollout.policies.end_evaluation()
        self.resources.envs.remake_missing()
        self.listeners.forget()
        self.rollout = Rollout(self.resources, self.listeners)

    def running_episodes(self) -> set[str]:
        """Return the ids of the episodes that the next call continues; empty after a failed call."""
        return {record.id_ for record in self.rollout.store.running()} if self.is_intact else set()

    def begin_call(self) -> None:
        """Mark a call as running, and rebuild the rollout if the last call did not finish.

        Raises:
            RunnerStoppedError: If there are no envs.
            ConfigError: If the modules were built for different spaces than the envs have.
        """
        self.resources.check_envs()
        self.resources.check_modules()
        was_intact, self.is_intact = self.is_intact, False
        if not was_intact:
            self.rebuild_rollout()

    def sample(self, request: Request) -> None:
        """Collect episodes and append them to `unreturned`, from which `MultiAgentEnvRunner.sample()` returns them."""
        resources = self.resources
        goal = make_goal(resources.config, request, resources.num_envs)
        goal.random_actions = request.random_actions
        explore = resources.config.explore if request.explore is None else check_bool("explore", request.explore)
        begun = perf_counter()
        self._kept.compact()
        self._write_record()
        self._write_output()
        self.begin_call()
        rollout = self.rollout
        resources.counts.begin_call(begun, resources.weights_seq_no, resources.module)
        begin = goal.begin(range(resources.num_envs))
        if request.force_reset or goal.counts_episodes:
            rollout.drop_begun(set(begin))
        rollout.store.begin_call(goal.num_timesteps, of_agents=not goal.counts_env_steps)
        resources.counts.watch_call(goal, rollout.log)
        try:
            chunks = rollout.play(goal, begin, explore)
            self._buffer_record()
            self._rescued += chunks
        except BaseException as error:
            self._keep_finished(goal)
            self._record_failed_call(error)
            raise
        resources.counts.add_call(goal, rollout.log.sum_up())
        blocks = [rollout.store.blocks[module] for module in rollout.store.active]
        rollout.log.end_call()
        rollout.policies.tidy()
        self.listeners.remember(chunks, {record.id_ for record in rollout.store.running()})
        self.is_intact = True
        self._write_record()
        samples = self._rescued
        if resources.config.return_only_policies_to_train:
            samples = [only_modules(chunk, resources.config.is_policy_to_train) for chunk in samples]
        self.listeners.call("on_sample_end", samples=samples)
        self._kept.add(samples, blocks)
        parcels = [] if self.output is None else [self.output.prepared(samples)]
        # One statement, so that an interrupt changes all of these or none.
        vars(self).update(_rescued=[], unreturned=[*self.unreturned, *samples], _unwritten=[*self._unwritten, *parcels])
        self._write_output()
        resources.counts.end_call(begun, perf_counter())

    def _keep_finished(self, goal: Goal) -> None:
        """Keep the finished episodes of a failed call for the next call, and count the steps of the failed call."""
        rollout = self.rollout
        self._rescued += rollout.rescued(self._rescued)
        for env_index in range(self.resources.num_envs):
            rollout.store.take_back(env_index, entire_chunk=False)
        goal.env_steps -= rollout.env.n_stepping  # the results of these steps are discarded
        self.resources.counts.add_call(goal, rollout.log.sum_up())
        rollout.env.forget()

    def _buffer_record(self, *, has_failed: bool = False) -> None:
        """Buffer the actions of this call for `_write_record()`, if actions are recorded."""
        recorder, rollout = self.resources.recorder, self.rollout
        if recorder is not None:
            recorder.take(recorder.fragment(rollout.log, rollout.policies.env_actions, has_failed=has_failed))

    def _write_record(self) -> None:
        """Write the buffered part of the record, including the part of an interrupted call."""
        if self.resources.recorder is not None:
            self.resources.recorder.write()

    def _write_output(self) -> None:
        """Write the pending episodes, including episodes of an interrupted call."""
        while self.output is not None and self._unwritten:
            self.output.write_once(self._unwritten[0])
            del self._unwritten[0]

    def _record_failed_call(self, error: BaseException) -> None:
        """Write the actions that led to `error`, which is about to be raised, for a replay."""
        recorder = self.resources.recorder
        if recorder is not None:
            try:
                if not recorder.has_unwritten:
                    self._buffer_record(has_failed=True)
                recorder.write()
            except RecordingError as another:
                error.add_note(f"fastmarl: {another}")
