"""A batch of envs that steps by itself, in arrays."""

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from fastmarl.array_scatter import ArrayScatter
from fastmarl.envs.arrays import ArrayEnv
from fastmarl.vector.parts import AfterStep, VectorParts


class ArrayVector:
    """Sends actions, receives steps, and has them written to the store.

    Args:
        env: the batch.
        parts: see there.

    Attributes:
        n_stepping: see `InProcessVector`.
    """

    def __init__(self, env: ArrayEnv, parts: VectorParts):
        self.envs = [env]
        self._env = env
        self._seeds = parts.seeds
        self._scatter = ArrayScatter(env, parts.store, parts.env_actions)
        self._seconds = parts.seconds
        self._env_states = parts.env_states
        self.n_stepping = 0

    def reset(self, env_indices: Sequence[int]) -> None:
        """Reset these envs and write their first observations; only an env's first reset is seeded."""
        if not env_indices:
            return
        seeds = [seed for seed in (self._seeds[i] for i in env_indices) if seed is not None]
        for i in env_indices:
            self._seeds[i] = None
        out = self._scatter.arrays_for_reset()
        try:
            self._env.reset(np.array(env_indices), out, seeds=seeds if len(seeds) == len(env_indices) else None)
        except Exception as error:
            error.add_note(f"fastmarl: raised by reset() of the envs {list(env_indices)!s:.200}")
            raise
        self._record_states(env_indices)
        self._scatter.write_reset(np.array(env_indices), out)

    def send(self) -> int:
        """Have the batch stepped; returns the number of its envs."""
        self.n_stepping = self._env.num_envs
        return self.n_stepping

    def forget(self) -> None:
        """After an error; see `InProcessVector.forget`."""
        self.n_stepping = 0

    def recv(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Record the batch's step; see `InProcessVector.recv`."""
        begun = perf_counter()
        actions, out = self._scatter.actions(), self._scatter.arrays_for_step()
        sent = perf_counter()
        try:
            self._env.step(actions, out)
        except Exception as error:
            error.add_note(f"fastmarl: raised by step() of the batch of {self._env.num_envs} envs")
            raise
        self._record_states(range(self._env.num_envs))
        stepped = perf_counter()
        all_done_E, ended_envs = self._scatter.write_step(out)
        self.n_stepping = 0
        seconds = self._seconds
        seconds["timed_scatter"] += perf_counter() - stepped
        seconds["timed_env"] += stepped - sent
        seconds["timed_send"] += sent - begun
        if after_each:
            after_step(list(range(len(all_done_E))), all_done_E.tolist())
        elif len(ended_envs):
            after_step(ended_envs.tolist(), all_done_E[ended_envs].tolist())

    def _record_states(self, env_indices: Sequence[int]) -> None:
        if self._env_states:
            states = self._env.state()  # type: ignore[attr-defined]  # make_env_states() has looked whether it has one
            for env_index in env_indices:
                self._env_states[env_index].add(states[env_index])
