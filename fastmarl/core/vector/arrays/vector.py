"""Vector of batches, each of which steps several envs with arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event, Thread
from time import perf_counter
from typing import Any

import numpy as np

from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.errors import ObservationError
from fastmarl.core.vector.arrays.group import Acted
from fastmarl.core.vector.arrays.scatter import ArrayScatter, take_actions
from fastmarl.core.vector.turns import TakesTurns
from fastmarl.core.vector.wiring import AfterStep, VectorEnv, VectorParts

Flags = tuple[np.ndarray, np.ndarray]  # result of `ArrayScatter.write_step()`


class BatchStepper:
    """Steps a batch of envs with actions from the modules, and writes the steps to the store.

    Args:
        env: The batch.
        env_indices: Runner indices of the envs in the batch.
        first_position: See `ArrayScatter`.
        parts: See `VectorParts`.
    """

    def __init__(self, env: ArrayEnv, env_indices: range, first_position: int, parts: VectorParts):
        self.env = env
        self.env_indices = env_indices
        self._seeds = parts.seeds
        self._unseeded = set(env_indices)
        self._is_alone = len(env_indices) == len(parts.seeds)
        spaces_of = {agent: (env.observation_spaces[agent], env.action_spaces[agent]) for agent in env.possible_agents}
        parts.agent_spaces.share(env_indices, spaces_of)
        self._scatter = ArrayScatter(env, parts.store, env_indices, first_position)
        self._env_states = parts.env_states
        self._resting: set[int] = set()
        self._to_begin: set[int] = set()  # resting envs that must be reset before the next step
        self._given: tuple[dict[str, Any], StepArrays]

    def reset(self, env_indices: list[int]) -> None:
        """Reset some envs of the batch and write their first observations."""
        self._resting.difference_update(env_indices)
        own = self._own(env_indices)
        out = self._begin(env_indices, own)
        self.record_states(env_indices)
        self._scatter.write_reset(own, out)

    def _begin(self, env_indices: list[int], own: np.ndarray) -> StepArrays:
        """Reset these envs and all others due for a reset, as some batches can only start all envs together.

        Args:
            env_indices: Indices of the envs in the runner.
            own: int64, positions of these envs in the batch.
        """
        if self._to_begin:
            env_indices, self._to_begin = sorted(self._to_begin.union(env_indices)), set()
            own = self._own(env_indices)
        seeds = self._take_seeds(env_indices)
        out = self._scatter.arrays_for_reset()
        try:
            self.env.reset(own, out, seeds=seeds)
        except ObservationError as error:
            raise self._placed(error, stepped=False) from error
        except (Exception, SystemExit) as error:
            error.add_note(f"fastmarl: raised by reset() of the envs {env_indices!s:.200}")
            raise
        if self._resting:
            self._scatter.forget(self._own(sorted(self._resting)), out)
        return out

    def _take_seeds(self, env_indices: list[int]) -> list[int] | None:
        """Return the seeds for resetting these envs, or None for an unseeded reset.

        Batches that cannot be seeded per episode get seeds only at the first reset of all their envs, so no seed
        reproduces a single episode.
        """
        seeds = self._seeds.take_all(env_indices)
        if self.env.seeds_each_episode:
            return seeds
        is_first = self._unseeded.issuperset(env_indices)
        self._unseeded.difference_update(env_indices)
        for env_index in env_indices:
            self._seeds.last[env_index] = None
        return seeds if is_first else None

    def resume(self, env_indices: Sequence[int]) -> None:
        """Continue the episodes of those given envs that are in the batch, with their lanes."""
        self._unseeded.clear()
        for env_index in env_indices:
            if env_index in self.env_indices:
                self._scatter.resume(self.env_indices.index(env_index))

    def _own(self, env_indices: Sequence[int]) -> np.ndarray:
        """Return the positions of these envs in the batch, int64."""
        own = np.array(env_indices, np.int64)
        return own if self._is_alone else (own - self.env_indices.start) // self.env_indices.step

    def rest(self, env_indices: Collection[int]) -> None:
        """Mark envs as having no episode. They are stepped with the others, but not recorded until they are reset."""
        new = {env_index for env_index in env_indices if env_index in self.env_indices} - self._resting
        if new:
            self._resting |= new
            self._to_begin |= new
            self._scatter.drop_lanes(self._own(sorted(new)))

    @property
    def awake(self) -> Sequence[int]:
        """Envs of the batch that are not resting."""
        if not self._resting:
            return self.env_indices
        return [env_index for env_index in self.env_indices if env_index not in self._resting]

    def give(self, acted: list[Acted]) -> None:
        """Set the actions of the next step."""
        if self._to_begin:
            self._begin([], self._own([]))
        out = self._scatter.arrays_for_step()
        self._given = self._scatter.actions(acted), out

    def step(self) -> None:
        """Step the batch with the actions set by `give()`, accessing only the env and its arrays."""
        try:
            self.env.step(*self._given)
        except ObservationError as error:
            raise self._placed(error, stepped=True) from error
        except (Exception, SystemExit) as error:
            error.add_note(f"fastmarl: raised by step() of the batch of the envs {list(self.env_indices)!s:.200}")
            raise

    def _placed(self, error: ObservationError, *, stepped: bool) -> ObservationError:
        """Return the error with the runner index and env step of the env filled in."""
        own, agent_id, _, problem = error.args
        env_t = self._scatter.env_t(own) + 1 if stepped else 0
        return ObservationError(self.env_indices[own], agent_id, env_t, problem)

    def write(self) -> Flags:
        """Record the step in the store."""
        if self._resting:
            own, out = self._own(sorted(self._resting)), self._given[1]
            is_over = out.terminated[own] | out.truncated[own]
            self._to_begin.update(np.array(self.env_indices)[own[is_over]].tolist())
            self._scatter.forget(own, out)
        return self._scatter.write_step(self._given[1])

    def announce(self, after_step: AfterStep, after_each: bool, flags: Flags) -> None:
        """Call `after_step` for the recorded step; see `InProcessVector.recv`."""
        all_done_E, ended_envs = flags
        if after_each:
            awake = list(self.awake)
            after_step(awake, all_done_E[self._own(awake)].tolist())
        elif len(ended_envs):
            env_indices = self.env_indices.start + self.env_indices.step * ended_envs
            after_step(env_indices.tolist(), all_done_E[ended_envs].tolist())

    def record_states(self, env_indices: Sequence[int]) -> None:
        """Record the global states of some envs of the batch, if states are recorded."""
        if self._env_states and env_indices:
            states = self.env.state()  # type: ignore[attr-defined]  # `state` was checked in make_env_states()
            states = self._env_states[env_indices[0]].rows_of_batch(states, self.env.num_envs)
            for env_index in env_indices:
                self._env_states[env_index].add(states[self.env_indices.index(env_index)])


class ArrayVector(TakesTurns[BatchStepper], VectorEnv):
    """Steps several batches alternately, one in a background thread while the actions for another are chosen.

    A single batch is stepped in the calling thread. The background thread exists only while a step is running, not
    between calls.

    Args:
        envs: The batches; batch k of n has the envs k, k + n, k + 2n, ...
        parts: See `VectorParts`.
    """

    def __init__(self, envs: list[ArrayEnv], parts: VectorParts):
        self.envs = envs
        self.num_envs = len(parts.seeds)
        batches = []
        first_position = 0
        for part, env in enumerate(envs):
            batches.append(BatchStepper(env, range(part, len(parts.seeds), len(envs)), first_position, parts))
            first_position += env.num_envs * len(env.possible_agents)
        super().__init__(batches)
        self._env_actions = parts.env_actions
        self._seconds = parts.seconds
        self._in_background = len(envs) > 1
        self._background = BackgroundSteps()

    def reset(self, env_indices: Sequence[int]) -> None:
        """Reset these envs and write their first observations."""
        if not self._stepping:
            self._background.end()  # if `forget()` was interrupted
        for batch in self._splits:
            own = [env_index for env_index in env_indices if env_index in batch.env_indices]
            if own:
                batch.reset(own)

    def resume(self, env_indices: Sequence[int], turns: list[int]) -> None:
        super().resume(env_indices, turns)
        for batch in self._splits:
            batch.resume(env_indices)

    def rest(self, env_indices: Collection[int]) -> None:
        """Mark envs as having no episode; see `BatchStepper.rest()`."""
        for batch in self._splits:
            batch.rest(env_indices)

    def _is_awake(self, part: BatchStepper) -> bool:
        return bool(part.awake)

    def _send(self, parts: list[BatchStepper]) -> int:
        begun = perf_counter()
        acted = take_actions(self._env_actions)
        n_sent = 0
        for batch in parts:
            batch.give(acted)
            if self._in_background:
                self._background.begin(batch.step)
            n_sent += len(batch.awake)
        self._seconds["timed_send"] += perf_counter() - begun
        return n_sent

    def recv(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Record the step of the batch that received actions first; see `InProcessVector.recv`."""
        begun = perf_counter()
        if self._in_background:
            self._background.finish()
        else:
            self._stepping[0].step()
        batch = self._end_turn(self._stepping[0])
        if not self._stepping:
            self._background.end()
        batch.record_states(batch.awake)
        stepped = perf_counter()
        flags = batch.write()
        self.n_stepping -= len(batch.awake)
        self._seconds["timed_scatter"] += perf_counter() - stepped
        self._seconds["timed_env"] += stepped - begun
        batch.announce(after_step, after_each, flags)

    def forget(self) -> None:
        """Wait for pending steps after an error, and drop their results. All envs will be reset."""
        self._begin_turns()
        self._background.end()


class BackgroundSteps:
    """Runs steps in the order of their `begin()` calls, in a thread that exists from the first step until `end()`.

    It is a daemon thread, so a hanging step does not prevent the process from exiting.
    """

    def __init__(self) -> None:
        self._ended: Event | None = None  # set when the thread ends; None without a thread
        self._steps: SimpleQueue[Callable[[], None] | None]
        self._results: SimpleQueue[BaseException | None]

    def begin(self, step: Callable[[], None]) -> None:
        """Queue a step; the thread runs it in the `contextvars` context of the caller that started the thread."""
        if self._ended is None:
            self._steps, self._results, ended = SimpleQueue(), SimpleQueue(), Event()
            arguments = (_make, self._steps, self._results, ended)
            try:
                Thread(target=copy_context().run, args=arguments, name="fastmarl-steps", daemon=True).start()
                self._ended = ended
            except BaseException:  # interrupted, possibly after the thread has started
                self._steps.put(None)
                raise
        self._steps.put(step)

    def finish(self) -> None:
        """Wait for the earliest pending step; raise its error, if any."""
        error = self._results.get()
        if error is not None:
            raise error

    def end(self) -> None:
        """Wait for all steps, ignoring their errors, and stop the thread. After an interrupt, call this again."""
        # Results are not counted, as an interrupted wait may or may not have taken one. The thread is not joined: in
        # Python 3.11 a thread whose join() was interrupted counts as ended.
        if self._ended is not None:
            self._steps.put(None)
            self._ended.wait()
            self._ended = None


def _make(
    steps: SimpleQueue[Callable[[], None] | None], results: SimpleQueue[BaseException | None], ended: Event
) -> None:
    while (step := steps.get()) is not None:
        try:
            step()
            results.put(None)
        except BaseException as error:
            results.put(error)
    ended.set()
