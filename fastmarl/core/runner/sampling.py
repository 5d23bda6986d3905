"""Calls of `sample()`: what they return, and what goes on when they fail."""

from time import perf_counter
from typing import TYPE_CHECKING

from fastmarl.core.episodes.kept_chunks import KeptChunks
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.selection import only_modules
from fastmarl.core.errors import RecordingError
from fastmarl.core.runner.config_changes import ANY_MAKE, MAKE_ENV, MAKE_MODULE, in_force
from fastmarl.core.runner.goals import Goal, make_goal
from fastmarl.core.runner.listeners import Listeners
from fastmarl.core.runner.resources import Resources
from fastmarl.core.runner.rollout import Rollout

if TYPE_CHECKING:
    from fastmarl.core.runner.output import Parcel, ParquetWriter


class Sampling:
    """Samples, call by call, with what a runner has.

    Attributes:
        rollout: the running episodes.
        is_whole: whether the last call, or change of envs or modules, has come to its end. If not, the next call makes
            the rollout anew.
        output: writes what is returned; None: nothing does.
        unreturned: the episodes of calls that have come to their end. The caller of `sample()` takes them, as the last
            thing that it does: an interrupt before that leaves them to the next call.
    """

    def __init__(self, resources: Resources, listeners: Listeners):
        self.resources = resources
        self.listeners = listeners
        self.output: ParquetWriter | None = None
        self.unreturned: list[MultiAgentEpisode] = []
        self._unwritten: list[Parcel] = []  # of `unreturned`
        self._kept = KeptChunks()
        self._rescued: list[MultiAgentEpisode] = []  # by a call that then failed, or before anything can fail no more
        self.rollout = Rollout(resources, listeners)
        self.is_whole = True

    def make_env(self) -> None:
        """Close the envs and create them again."""
        resources = self.resources
        config = in_force(resources.config, resources.wanted, MAKE_ENV | ANY_MAKE)
        self.is_whole = False
        resources.make_envs(config)
        self.rollout = Rollout(resources, self.listeners)
        resources.has_envs = self.is_whole = True
        self.announce_envs()

    def make_module(self) -> None:
        """Create the modules again."""
        resources = self.resources
        config = in_force(resources.config, resources.wanted, MAKE_MODULE | ANY_MAKE)
        was_whole, self.is_whole = self.is_whole, False
        try:
            resources.make_modules(config)
        except Exception:
            self.is_whole = was_whole
            raise
        self.rollout = Rollout(resources, self.listeners)
        self.is_whole = True

    def announce_envs(self) -> None:
        contexts = self.resources.envs.contexts
        self.listeners.call("on_environment_created", env=self.rollout.env, env_context=contexts[0])

    def rebuild_rollout(self) -> None:
        """The last call did not finish: rebuild the rollout.

        Envs, modules, what connectors know, random streams and counters stay; all envs will be reset.
        """
        self.rollout.env.forget()
        self.rollout.policies.leave_modes()
        self.rollout.policies.end_evaluation()
        self.resources.envs.remake_missing()
        self.listeners.forget()
        self.rollout = Rollout(self.resources, self.listeners)

    def running_episodes(self) -> set[str]:
        """Ids of the episodes with which the next call goes on; none after one that has failed."""
        return {record.id_ for record in self.rollout.store.running()} if self.is_whole else set()

    def begin_call(self) -> None:
        """Note that a call is under way; rebuild the rollout if the last one did not finish.

        Raises:
            RunnerStoppedError: there are no envs.
            ConfigError: they have other spaces than the modules were made for.
        """
        self.resources.check_envs()
        self.resources.check_modules()
        was_whole, self.is_whole = self.is_whole, False
        if not was_whole:
            self.rebuild_rollout()

    def sample(
        self,
        num_timesteps: int | None,
        num_episodes: int | None,
        explore: bool,
        random_actions: bool,
        force_reset: bool,
    ) -> None:
        """Add to `unreturned` what `MultiAgentEnvRunner.sample()` returns."""
        resources = self.resources
        goal = make_goal(resources.config, num_timesteps, num_episodes, resources.num_envs)
        goal.random_actions = random_actions
        begun = perf_counter()
        self._kept.compact()
        self._write_record()
        self._write_output()
        self.begin_call()
        rollout = self.rollout
        resources.counts.begin_call(begun, resources.weights_seq_no, resources.module)
        begin = goal.begin(range(resources.num_envs))
        if force_reset or goal.counts_episodes:
            rollout.drop_begun(set(begin))
        rollout.store.begin_call(goal.num_timesteps, of_agents=not goal.counts_env_steps)
        resources.counts.watch_call(goal, rollout.log)
        try:
            chunks = rollout.play(goal, begin, explore)
            self._take_down()
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
        self.is_whole = True
        self._write_record()
        samples = self._rescued
        if resources.config.return_only_policies_to_train:
            samples = [only_modules(chunk, resources.config.is_policy_to_train) for chunk in samples]
        self.listeners.call("on_sample_end", samples=samples)
        self._kept.add(samples, blocks)
        parcels = [] if self.output is None else [self.output.prepared(samples)]
        # In one step: an interrupt comes before it or after it.
        vars(self).update(_rescued=[], unreturned=[*self.unreturned, *samples], _unwritten=[*self._unwritten, *parcels])
        self._write_output()
        resources.counts.end_call(begun, perf_counter())

    def _keep_finished(self, goal: Goal) -> None:
        """The call has failed: the episodes that have finished are returned by the next one, and it counts."""
        rollout = self.rollout
        self._rescued += rollout.rescued(self._rescued)
        for env_index in range(self.resources.num_envs):
            rollout.store.take_back(env_index, whole_chunk=False)
        goal.env_steps -= rollout.env.n_stepping  # their results are discarded
        self.resources.counts.add_call(goal, rollout.log.sum_up())
        rollout.env.forget()

    def _take_down(self, *, has_failed: bool = False) -> None:
        """Hold what the call adds to the record of actions, if there is one, for `_write_record()`."""
        recorder, rollout = self.resources.recorder, self.rollout
        if recorder is not None:
            recorder.take(recorder.fragment(rollout.log, rollout.policies.env_actions, has_failed=has_failed))

    def _write_record(self) -> None:
        """Write down what is held, also of a call that was interrupted before it came to that."""
        if self.resources.recorder is not None:
            self.resources.recorder.write()

    def _write_output(self) -> None:
        """Have what is to be returned written, also of a call that was interrupted before it came to that."""
        while self.output is not None and self._unwritten:
            self.output.write_once(self._unwritten[0])
            del self._unwritten[0]

    def _record_failed_call(self, error: BaseException) -> None:
        """Write down what led to this error, which is about to be raised: it can be replayed."""
        recorder = self.resources.recorder
        if recorder is not None:
            try:
                if not recorder.has_unwritten:
                    self._take_down(has_failed=True)
                recorder.write()
            except RecordingError as another:
                error.add_note(f"fastmarl: {another}")
