"""Batches of envs that step by themselves, in arrays."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from fastmarl.array_scatter import Acted, ArrayScatter, take_actions
from fastmarl.envs.arrays import ArrayEnv, StepArrays
from fastmarl.vector.background import BackgroundSteps
from fastmarl.vector.parts import AfterStep, VectorParts

Flags = tuple[np.ndarray, np.ndarray]  # what `ArrayScatter.write_step()` returns


class Batch:
    """One batch: gives it its actions, steps it, and has its steps written to the store.

    Args:
        env: the batch.
        env_indices: which of the runner's envs are in it.
        first_place: see `ArrayScatter`.
        parts: see there.
    """

    def __init__(self, env: ArrayEnv, env_indices: range, first_place: int, parts: VectorParts):
        self.env = env
        self.env_indices = env_indices
        self._seeds = parts.seeds
        alone = len(env_indices) == len(parts.seeds)
        self._scatter = ArrayScatter(env, parts.store, env_indices, first_place, alone=alone)
        self._env_states = parts.env_states
        self._given: tuple[dict[str, Any], StepArrays]

    def reset(self, env_indices: list[int]) -> None:
        """Reset some of its envs and write their first observations; only an env's first reset is seeded."""
        seeds = [seed for seed in (self._seeds[i] for i in env_indices) if seed is not None]
        for i in env_indices:
            self._seeds[i] = None
        own_indices = (np.array(env_indices) - self.env_indices.start) // self.env_indices.step
        out = self._scatter.arrays_for_reset()
        try:
            self.env.reset(own_indices, out, seeds=seeds if len(seeds) == len(env_indices) else None)
        except Exception as error:
            error.add_note(f"fastmarl: raised by reset() of the envs {env_indices!s:.200}")
            raise
        self.record_states(env_indices)
        self._scatter.write_reset(own_indices, out)

    def give(self, acted: list[Acted]) -> None:
        """The actions of its next step."""
        self._given = self._scatter.actions(acted), self._scatter.arrays_for_step()

    def step(self) -> None:
        """With the actions that were given; nothing but the env and its arrays is touched."""
        try:
            self.env.step(*self._given)
        except Exception as error:
            error.add_note(f"fastmarl: raised by step() of the batch of the envs {list(self.env_indices)!s:.200}")
            raise

    def write(self) -> Flags:
        """Record the step."""
        return self._scatter.write_step(self._given[1])

    def tell(self, after_step: AfterStep, after_each: bool, flags: Flags) -> None:
        """Of the step that was recorded, see `InProcessVector.recv`."""
        all_done_E, ended_envs = flags
        if after_each:
            after_step(list(self.env_indices), all_done_E.tolist())
        elif len(ended_envs):
            env_indices = self.env_indices.start + self.env_indices.step * ended_envs
            after_step(env_indices.tolist(), all_done_E[ended_envs].tolist())

    def record_states(self, env_indices: Sequence[int]) -> None:
        """Record the global states of some of its envs, if that is asked for."""
        if self._env_states:
            states = self.env.state()  # type: ignore[attr-defined]  # make_env_states() has looked whether it has one
            for env_index in env_indices:
                self._env_states[env_index].add(states[self.env_indices.index(env_index)])


class ArrayVector:
    """Steps one batch.

    Args:
        env: the batch.
        parts: see there.

    Attributes:
        n_stepping: see `InProcessVector`.
    """

    def __init__(self, env: ArrayEnv, parts: VectorParts):
        self.envs = [env]
        self._batch = Batch(env, range(env.num_envs), 0, parts)
        self._env_actions = parts.env_actions
        self._seconds = parts.seconds
        self.n_stepping = 0

    def reset(self, env_indices: Sequence[int]) -> None:
        """Reset these envs and write their first observations; only an env's first reset is seeded."""
        if env_indices:
            self._batch.reset(list(env_indices))

    def send(self) -> int:
        """Have the batch stepped; returns the number of its envs."""
        self.n_stepping = len(self._batch.env_indices)
        return self.n_stepping

    def recv(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Record the batch's step; see `InProcessVector.recv`."""
        begun = perf_counter()
        self._batch.give(take_actions(self._env_actions))
        sent = perf_counter()
        self._batch.step()
        self._batch.record_states(self._batch.env_indices)
        stepped = perf_counter()
        flags = self._batch.write()
        self.n_stepping = 0
        self._seconds["timed_scatter"] += perf_counter() - stepped
        self._seconds["timed_env"] += stepped - sent
        self._seconds["timed_send"] += sent - begun
        self._batch.tell(after_step, after_each, flags)

    def forget(self) -> None:
        """After an error; see `InProcessVector.forget`."""
        self.n_stepping = 0


class SplitArrayVector:
    """Steps several batches in turn: one in another thread, while another's actions are chosen.

    That thread is there while there is something to step, and not between calls.

    Args:
        envs: the batches; of n of them, batch k has the envs k, k + n, k + 2n, ...
        parts: see there.

    Attributes:
        n_stepping: see `InProcessVector`.
    """

    def __init__(self, envs: list[ArrayEnv], parts: VectorParts):
        self.envs = envs
        self._batches = []
        first_place = 0
        for part, env in enumerate(envs):
            self._batches.append(Batch(env, range(part, len(parts.seeds), len(envs)), first_place, parts))
            first_place += env.num_envs * len(env.possible_agents)
        self._env_actions = parts.env_actions
        self._seconds = parts.seconds
        self._idle = list(self._batches)
        self._stepping: list[Batch] = []  # in the order in which they are stepped
        self._background = BackgroundSteps()
        self.n_stepping = 0

    def reset(self, env_indices: Sequence[int]) -> None:
        """Reset these envs and write their first observations; only an env's first reset is seeded."""
        if not self._stepping:
            self._background.end()  # for the case that `forget()` was interrupted
        for batch in self._batches:
            own = [env_index for env_index in env_indices if env_index in batch.env_indices]
            if own:
                batch.reset(own)

    def send(self) -> int:
        """Have all batches stepped that are not being stepped; returns the number of their envs."""
        begun = perf_counter()
        acted = take_actions(self._env_actions)
        n_sent = 0
        for batch in self._idle:
            batch.give(acted)
            self._background.begin(batch.step)
            n_sent += len(batch.env_indices)
        self._stepping += self._idle
        self._idle = []
        self.n_stepping += n_sent
        self._seconds["timed_send"] += perf_counter() - begun
        return n_sent

    def recv(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Record the step of the batch that was given actions first; see `InProcessVector.recv`."""
        begun = perf_counter()
        self._background.finish()
        batch = self._stepping.pop(0)
        self._idle.append(batch)
        if not self._stepping:
            self._background.end()
        batch.record_states(batch.env_indices)
        stepped = perf_counter()
        flags = batch.write()
        self.n_stepping -= len(batch.env_indices)
        self._seconds["timed_scatter"] += perf_counter() - stepped
        self._seconds["timed_env"] += stepped - begun
        batch.tell(after_step, after_each, flags)

    def forget(self) -> None:
        """After an error: steps under way are waited for, and not recorded. All envs will be reset."""
        self._idle, self._stepping = list(self._batches), []
        self.n_stepping = 0
        self._background.end()
