"""A batch of envs that steps by itself, in arrays."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from fastmarl.array_scatter import ArrayScatter
from fastmarl.env_actions import EnvActions
from fastmarl.env_states import EnvStates
from fastmarl.envs.arrays import ArrayEnv
from fastmarl.store import EpisodeStore


class ArrayVector:
    """Sends actions, receives steps, and has them written to the store.

    Args:
        env: the batch.
        seeds: per env, of its first reset.
        store, env_actions: where steps go to and actions come from.
        seconds: takes "timed_env", "timed_scatter" and "timed_send".
        env_states: per env, what records its global states; empty: nothing does.
    """

    def __init__(
        self,
        env: ArrayEnv,
        seeds: list[int | None],
        store: EpisodeStore,
        env_actions: list[EnvActions],
        seconds: defaultdict[str, float],
        env_states: Sequence[EnvStates],
    ):
        self.envs = [env]
        self._env = env
        self._seeds = seeds
        self._scatter = ArrayScatter(env, store, env_actions)
        self._seconds = seconds
        self._env_states = env_states

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

    def step(self, after_step: Callable[[int, int], None], *, after_each: bool) -> None:
        """Step the batch with its agents' actions; see `InProcessVector.step`."""
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
        all_done_E = self._scatter.write_step(out)
        seconds = self._seconds
        seconds["timed_scatter"] += perf_counter() - stepped
        seconds["timed_env"] += stepped - sent
        seconds["timed_send"] += sent - begun
        for env_index in range(len(all_done_E)) if after_each else np.flatnonzero(all_done_E).tolist():
            after_step(env_index, int(all_done_E[env_index]))

    def _record_states(self, env_indices: Sequence[int]) -> None:
        if self._env_states:
            states = self._env.state()  # type: ignore[attr-defined]  # make_env_states() has looked whether it has one
            for env_index in env_indices:
                self._env_states[env_index].add(states[env_index])
