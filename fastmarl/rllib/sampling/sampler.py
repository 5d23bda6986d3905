"""The fast sampling path for RLlib: RLlib's order of events with the step store of the core.

The order within an iteration determines how random numbers are used: all modules act, all envs step (finished envs are
reset instead), all steps are recorded, episodes end. See `ray.rllib.env.multi_agent_env_runner`.
"""

import time
from typing import Any

import numpy as np

from fastmarl.core.native._rllib_steps import record_steps, step_envs
from fastmarl.core.store.request import Request
from fastmarl.rllib.sampling.acting import Acting
from fastmarl.rllib.sampling.episode_events import END, START, STEP, EpisodeEvents
from fastmarl.rllib.sampling.hand_over import hand_over
from fastmarl.rllib.sampling.internals import EARLIER, Internals
from fastmarl.rllib.sampling.mapping import AgentToModuleMapping
from fastmarl.rllib.sampling.module_inputs import ModuleInputs
from fastmarl.rllib.sampling.parts import Parts
from fastmarl.rllib.sampling.pieces_in_python import PiecesInPython
from fastmarl.rllib.sampling.step_writer import StepWriter
from fastmarl.rllib.sampling.to_env import ToEnv
from fastmarl.rllib.sampling.to_module import ToModule
from fastmarl.rllib.sampling.window import Window
from fastmarl.rllib.store.builder import Builder, RLlibChunk
from fastmarl.rllib.store.records import CallCounts, ChunkNumbers, RLlibRecord
from fastmarl.rllib.store.running_episodes import RunningEpisodes


class FastSampler:
    """Samples for a runner that can use the fast path.

    Args:
        internals: The RLlib runner, whose env, module, config and seed are used.
        finished: List to which the `ChunkNumbers` of each finished episode are appended.
        draws: See Parts.

    Attributes:
        parts: Parts of the runner, with the counts of the last call.
        events: Calls the callbacks.
    """

    def __init__(self, internals: Internals, finished: list[list[ChunkNumbers]], draws: np.random.Generator | None):
        self._internals, self._runner = internals, internals.runner
        self.parts, runner = Parts(internals, draws), internals.runner
        spaces, self._connectors = self.parts.spaces, self.parts.connectors
        self._builder = Builder(self.parts.store, spaces, runner.episode_class, runner.fixes)
        episodes = RunningEpisodes(self.parts.store, self._builder, spaces, runner.episode_class)
        self._mapping = AgentToModuleMapping(self.parts, episodes)
        self._recording = StepWriter(self.parts, self._mapping)
        self.events = EpisodeEvents(self.parts, self._builder, episodes)
        self._in_python = PiecesInPython(self.parts, self.events)
        inputs = ModuleInputs(self.parts)
        self._to_module = ToModule(self.parts, inputs, self._in_python)
        self._acting = Acting(self.parts, inputs, self._to_module, ToEnv(self.parts, self._in_python))
        self._resets: dict[int, tuple] = {}  # env -> (observations, infos) of its reset in this tick
        self._as_steps: dict[int, tuple] = {}  # env -> its reset in this tick, if that is recorded as a step
        self._stepped_at = 0.0  # end of the last env step
        self._autoreset = [False] * runner.num_envs  # True if the env has finished: reset instead of step
        self._idle: set[int] = set()  # envs that have finished all their episodes of this call (59)
        self._n_wanted = 0  # episodes still to be started in this call (59)
        self._all_recreated = False  # True if all envs were recreated in this tick
        self._under_way = 0  # env steps in the chunks of running episodes
        self._finished: list[RLlibChunk] = []
        self._finished_numbers = finished

    def hand_over(self, explore: bool | None = None) -> None:
        """Hand the running episodes over to the RLlib loop; `explore` defaults to its last value."""
        explore = self._in_python.explore if explore is None else explore
        hand_over(self.parts, self.events, self._autoreset, self._to_module, explore)

    # Sampling.

    def sample(self, request: Request, kept: list[Any]) -> None:
        """Sample like RLlib's `_sample()`, and append the episodes to `kept`.

        After an error, `kept` contains only the finished episodes, and this object cannot sample again.
        """
        runner, internals, began = self._runner, self._internals, time.perf_counter()
        num_timesteps, num_episodes = request.num_timesteps, request.num_episodes
        self.parts.counts = CallCounts()
        self._env_ts = self._agent_ts = 0  # in this call, without steps lost by failed envs
        self._counts_env_steps = runner.config.count_steps_by == "env_steps"
        self._n_runners = runner.config.num_env_runners or 1
        try:
            self.parts.refresh()
            self.events.refresh()
            assert request.explore is not None  # the runner config decides
            self._in_python.explore = request.explore
            self.parts.store.begin_call(num_timesteps, of_agents=not self._counts_env_steps)
            if request.force_reset or num_episodes is not None or internals.needs_initial_reset:
                self._reset_all(num_episodes)
            if num_episodes is not None:
                internals.needs_initial_reset = True
            self.parts.store.use_weights(internals.weights_seq_no)
            for record in self.parts.running():
                record.started_at = time.perf_counter()
            self.events.is_in_tick = True
            while not self._reached(request):
                self._tick(request)
            self.parts.store.stamp_all()
            running = self._end_chunks() if num_episodes is None else []
            self._builder.find_hanging()
            successors = self.events.cut(runner.config.episode_lookback_horizon) if num_episodes is None else {}
            kept += self._episodes([*self._finished, *running])
            self._count_finished()
        except BaseException:
            self._keep_finished(kept)
            raise
        finally:
            self.events.is_in_tick = False
            self.parts.counts.lost_reward = self.parts.table.unattributed_reward
            self.parts.table.unattributed_reward = 0.0
        self._in_python.log_slow_pieces(time.perf_counter() - began)
        self._end_call(running, kept[len(kept) - len(running) :], cut=num_episodes is None)
        self.events.go_on(successors)

    def _reached(self, request: Request) -> bool:
        if request.num_timesteps is None:
            return request.num_episodes is not None and len(self._finished) >= request.num_episodes
        return (self._env_ts if self._counts_env_steps else self._agent_ts) >= request.num_timesteps

    def _tick(self, request: Request) -> None:
        """Run one tick: agents act, envs step, steps are recorded, episodes end."""
        acting, runner, num_episodes = self._acting, self._runner, request.num_episodes
        if self._internals.weights_seq_no != self.parts.store.seq_no:  # a callback has changed it
            self.parts.store.change_weights(self._internals.weights_seq_no)
        before = runner.num_env_steps_sampled_lifetime // self._n_runners
        t = (before + self._env_ts) * self._n_runners  # steps of all runners, as estimated by RLlib
        actions, for_env = acting.act_at_random() if request.random_actions else acting.act(self._in_python.explore, t)
        if self.events.late:
            self.events.write_back_late()
        if self.parts.shared_data.is_read:
            self.parts.shared_data.note_actions()
        if self.parts.counts_actions:
            self._agent_ts += self.parts.count_actions(actions)
        self.parts.store.advance()
        self._all_recreated = False
        done, n_finished = self._step_envs(actions, for_env), len(self._finished)
        if num_episodes is None:
            self.parts.counts.episodes += len(done)  # before callbacks, which may read it
        if self._all_recreated:  # connectors run before callbacks if all envs were reset
            self._connect(n_finished)
        if self.events.listened:
            self._call_back(done, num_episodes)
        elif done:
            self._end_episodes(done, num_episodes)
        if not self._all_recreated:
            self._connect(n_finished)
        counts = self.parts.counts
        counts.ticks += 1
        counts.lengths.append(self._under_way)

    def _connect(self, n_finished: int) -> None:
        """Run the connectors on the latest observations; `n_finished` episodes had finished before this tick."""
        if not self._connectors.pieces and not self.parts.to_module.last:
            return
        began = time.perf_counter()
        self._in_python.ended = ended = self._finished[n_finished:]
        try:
            done = [chunk.record.env_index for chunk in ended]
            batch = self._connectors.run(done, self._in_python, self._to_module.pass_ended)
            if self.parts.to_module.makes_batches:
                self._to_module.take(batch)
        except BaseException:
            del self._finished[n_finished:]  # their last observations are undefined
            raise
        self.parts.counts.seconds["connect"] += time.perf_counter() - began

    # Envs.

    def _reset_all(self, num_episodes: int | None) -> None:
        """Drop all running episodes and reset all envs."""
        runner, internals, parts = self._runner, self._internals, self.parts
        self._forget_earlier_chunks()
        for env_index in range(runner.num_envs):
            parts.store.drop_episode(env_index)
        parts.store.renew()
        for env_index in range(runner.num_envs):
            self._open_record(env_index)
        parts.shared_data.reset()
        seed = internals.seed if internals.needs_initial_reset else None
        observations, infos = internals.try_env_reset(seed=seed, options=None)
        parts.counts.resets += 1
        self._idle.clear()
        if num_episodes is not None and "59" in runner.fixes:
            self._idle.update(range(num_episodes, runner.num_envs))
            self._n_wanted = max(num_episodes - runner.num_envs, 0)
        for env_index, (obs, info) in enumerate(zip(observations, infos, strict=True)):
            if env_index not in self._idle:
                self._recording.begin_episode(env_index, obs, info)
                self.events.add_reset(env_index, obs, info)
        self._autoreset = [False] * len(observations)
        self._under_way = 0
        self._connect(len(self._finished))
        for env_index in range(runner.num_envs):
            if env_index not in self._idle:
                self.events.fire(START, env_index, is_late=True)
        internals.needs_initial_reset = False

    def _forget_earlier_chunks(self) -> None:
        """Drop earlier chunks, as RLlib does when all envs are reset; metrics then count only last chunks."""
        self._internals.loop[EARLIER].clear()
        for chunks in self._finished_numbers:
            del chunks[:-1]
        for chunk in self._finished:
            chunk.record.earlier.clear()

    def _step_envs(self, actions: list[dict], for_env: list[dict]) -> list[int]:
        """Step or reset all envs, record the results, and return the envs whose episodes have finished."""
        parts, resets, began = self.parts, self._autoreset, time.perf_counter()
        results, over = step_envs(self._runner.env.envs, for_env, resets, self._idle, self._restart)
        stepped = time.perf_counter()
        parts.counts.seconds["env_step"] += stepped - began
        self._stepped_at = stepped
        self._resets.clear()
        self._as_steps.clear()
        events = self.events
        acted = events.acted(actions) if events.views and events.has_built else {}
        done, n_steps, n_observed = record_steps(
            self, self._recording, parts.store.scatter, parts.table.records, actions, results, over, resets, stepped
        )
        if events.views and events.has_built:
            for env_index, (obs, infos) in self._resets.items():
                events.add_reset(env_index, obs, infos)
        for env_index, of_env in acted.items():
            step = self._as_steps.get(env_index, results[env_index])
            if step and env_index not in self._resets:
                events.add_step(env_index, of_env, step)
        parts.counts.env_steps += n_steps
        self._env_ts += n_steps
        self._under_way += n_steps
        self._agent_ts += 0 if parts.counts_actions else n_observed
        return done

    def _restart(self, env_index: int, error: Exception) -> None:
        self.parts.counts.step_failures += 1
        self._runner.restart_env(env_index, error)

    def take_reset(self, env_index: int, record: RLlibRecord, was_reset: bool, result: tuple) -> tuple | None:
        """Record the start of an episode, or return the reset as a step to record if RLlib continues an episode."""
        if not record.awaits_reset:  # RLlib ended the episode before its env did and began another, which continues
            self._as_steps[env_index] = step = _as_step(self._runner.env.envs[env_index], *result)
            return step
        self._resets[env_index] = result[0], result[-1]
        if was_reset or result[0]:  # else RLlib began an episode that waits for its first observation
            self._recording.begin_episode(env_index, result[0], result[-1])
        return None

    def restart_episode(self, env_index: int) -> None:
        """Drop the episode of a failed and recreated env and start another; other episodes continue."""
        parts, env = self.parts, self.parts.table.envs[env_index]
        record = parts.record_of(env_index)
        parts.count(record)
        lost = env.env_t - record.env_t_started
        self._under_way -= lost
        if self._runner.num_envs > 1:
            self._env_ts -= lost
            self._internals.loop[EARLIER].pop(record.id_, None)
        else:  # RLlib also resets its counts
            self._env_ts = self._agent_ts = 0
            self._all_recreated = True
            parts.shared_data.reset()
            self._forget_earlier_chunks()
        parts.store.drop_episode(env_index)
        self._open_record(env_index)
        self._resets[env_index] = reset = self._runner.reset_env(env_index)
        self._recording.begin_episode(env_index, *reset)
        self._autoreset[env_index] = False

    # Episodes end.

    def _open_record(self, env_index: int) -> None:
        self.parts.store.open_record(env_index, self._runner.config.policy_mapping_fn)
        self.events.begin(env_index)

    def _call_back(self, done: list[int], num_episodes: int | None) -> None:
        """Call the callbacks env by env, as in RLlib, and finish episodes."""
        for env_index in range(self._runner.num_envs):
            if env_index in self._idle:
                continue
            self.events.fire(START if env_index in self._resets else STEP, env_index, is_late=self._all_recreated)
            if env_index in done:
                self.events.fire(END, env_index)
                if self._end_episodes([env_index], num_episodes):
                    return

    def _end_episodes(self, done: list[int], num_episodes: int | None) -> bool:
        """Finish the episodes of these envs, and return True once the call has enough episodes."""
        for env_index in done:
            record = self.parts.record_of(env_index)
            self._finished.append(self._chunk(record))
            self._under_way -= self._finished[-1].length
            self.parts.counts.episodes += num_episodes is not None  # as many as are returned (20)
            self.parts.store.close_record(env_index)
            self._open_record(env_index)
            self.parts.shared_data.note_end(record.id_, self.parts.record_of(env_index).id_)
            if num_episodes is not None and len(self._finished) >= num_episodes:
                return True
            if num_episodes is not None and "59" in self._runner.fixes:
                if not self._n_wanted:
                    self._idle.add(env_index)
                self._n_wanted = max(self._n_wanted - 1, 0)
        return False

    def _chunk(self, record: RLlibRecord) -> RLlibChunk:
        self.parts.count(record)
        env = self.parts.table.envs[record.env_index]
        return RLlibChunk(record, env.env_t, env.infos, view=self.events.view_of(record.env_index))

    def _episodes(self, chunks: list[RLlibChunk]) -> list[Any]:
        """Build the episodes of finished chunks, keeping the objects seen by callbacks."""
        to_build = [chunk for chunk in chunks if chunk.view is None or not chunk.view.is_built]
        built = iter(self._builder.build(to_build))
        episodes = []
        for chunk in chunks:
            if chunk.view is None:
                chunk.numbers.follow(episode := next(built))
            elif chunk.view.is_built:
                episode = chunk.view.episode
                self._internals.prune_zero_len_sa_episodes(episode)
                chunk.view.to_numpy()
                chunk.numbers = ChunkNumbers.of(episode)
            else:
                chunk.numbers.follow(episode := chunk.view.become(next(built)))
            episodes.append(episode)
        return episodes

    def _end_chunks(self) -> list[RLlibChunk]:
        """Close and return the chunks of the running episodes."""
        running, envs = self.parts.running(), self.parts.table.envs
        for record in running:
            record.last_step_at = self._stepped_at
        return [self._chunk(record) for record in running if envs[record.env_index].env_t > record.env_t_started]

    def _count_finished(self) -> None:
        """Append the statistics of finished episodes for the metrics; may be repeated after an interrupt."""
        known = set(map(id, self._finished_numbers[-len(self._finished) :]))
        for chunk in self._finished:
            earlier = chunk.record.earlier
            if not earlier or earlier[-1] is not chunk.numbers:
                earlier.append(chunk.numbers)
            if id(earlier) not in known:
                self._finished_numbers.append(earlier)

    def _end_call(self, chunks: list[RLlibChunk], episodes: list[Any], *, cut: bool) -> None:
        """Prepare the next call; `chunks` are the chunks of running episodes."""
        parts = self.parts
        for chunk, episode in zip(chunks, episodes, strict=True):
            chunk.record.earlier.append(chunk.numbers)
            self.events.keep_chunk(chunk.record, episode)
        for record in parts.running():
            if cut:
                self._cut(record)
            else:
                parts.count(record)
                parts.store.drop_episode(record.env_index)
        parts.store.renew()
        self._finished, self._under_way = [], 0

    def _cut(self, record: RLlibRecord) -> None:
        """Cut an episode: continue it in a new chunk, which RLlib builds from its lookback window."""
        parts, builder, config = self.parts, self._builder, self._runner.config
        if record.awaits_reset:
            return
        is_shown = bool(self.events.listened) or parts.shows_episodes
        window = Window(parts.store, record, config.episode_lookback_horizon, builder.hanging)
        self._mapping.at_cut(record, window, config.episode_lookback_horizon, is_shown)
        parts.store.lookback_E[record.env_index] = window.lookback
        live = parts.table.envs[record.env_index].lane_of
        record.map_order = window.map_order
        record.ended_before = window.ended
        record.go_on(window.order, window.dropped, live)

    def _keep_finished(self, kept: list[Any]) -> None:
        """Keep the finished episodes of a failed call, to be returned by the next one."""
        parts = self.parts
        parts.inference.leave_modes()
        for record in parts.running():
            parts.count(record)
        parts.store.stamp_all()
        self._builder.hanging.clear()
        built = {(episode.id_, episode.env_t) for episode in kept}
        chunks = [chunk for chunk in self._finished if (chunk.record.id_, chunk.env_t) not in built]
        kept += self._episodes(chunks)
        self._count_finished()


def _as_step(env: Any, obs: dict, infos: dict) -> tuple:
    """Return a reset in the form of a step, like the RLlib vector env."""
    agents = env.unwrapped.possible_agents
    flags = {**dict.fromkeys(agents, False), "__all__": False}
    return obs, dict.fromkeys(agents, 0.0), flags, dict(flags), infos
