"""Envs stepped one after the other, in this process."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

from fastmarl._actions import ActionDicts
from fastmarl.env_actions import EnvActions
from fastmarl.env_states import EnvStates, StateRecordingEnv
from fastmarl.envs.form import check_reset_result, check_step_result
from fastmarl.store import EpisodeStore

TIMED_EVERY = 32  # ticks; clocks around each env's calls would cost as much as the cheapest envs


class InProcessVector:
    """Sends actions, receives steps, and writes them to the store at once: an env may reuse its arrays afterwards.

    Args:
        envs: multi-agent envs (see `fastmarl.envs.base`).
        seeds: per env, of its first reset.
        store, env_actions: where steps go to and actions come from.
        seconds: takes "timed_env", "timed_scatter" and "timed_send", of every TIMED_EVERY-th tick.
        check: whether each env's first results are checked in detail.
        env_states: per env, what records its global states; empty: nothing does.
    """

    def __init__(
        self,
        envs: list[Any],
        seeds: list[int | None],
        store: EpisodeStore,
        env_actions: list[EnvActions],
        seconds: defaultdict[str, float],
        check: bool,
        env_states: Sequence[EnvStates],
    ):
        self.envs = envs
        self._stepped = list(map(StateRecordingEnv, envs, env_states)) if env_states else envs
        self._seeds = seeds
        self._store = store
        self._actions = ActionDicts(store.table, env_actions)
        self._slots = list(zip(range(len(envs)), self._stepped, store.table.envs, strict=True))
        self._unchecked_resets = set(range(len(envs))) if check else set()
        self._unchecked_steps = set(self._unchecked_resets)
        self._ticks = 0
        self._seconds = seconds

    def reset(self, env_indices: Iterable[int]) -> None:
        """Reset these envs and write their first observations; only an env's first reset is seeded."""
        for env_index in env_indices:
            self._reset(env_index)

    def _reset(self, env_index: int) -> None:
        seed, self._seeds[env_index] = self._seeds[env_index], None
        try:
            result = self._stepped[env_index].reset(seed=seed)
        except Exception as error:
            _locate(error, env_index, "reset()")
            raise
        if env_index in self._unchecked_resets:
            check_reset_result(result, env_index)
            self._unchecked_resets.discard(env_index)
        try:
            self._store.scatter.write_reset(env_index, *result)
        except TypeError:
            check_reset_result(result, env_index)
            raise

    def step(self, after_step: Callable[[int, int], None], *, after_each: bool) -> None:
        """Step every env with its agents' actions.

        Args:
            after_step: called with (env index, flags of `__all__`) when an env's step is recorded,
            after_each: after every step, or else only after those that end an episode.
        """
        self._ticks += 1
        if self._unchecked_steps or self._ticks % TIMED_EVERY == 0:
            self._watched_step(after_step, after_each)
            return
        action_dict, write_step = self._actions.of, self._store.scatter.write_step
        for env_index, env, lanes in self._slots:
            actions = action_dict(lanes)
            try:
                result = env.step(actions)
            except Exception as error:
                _locate(error, env_index, "step()")
                raise
            try:
                all_done = write_step(env_index, *result)
            except TypeError:
                check_step_result(result, env_index, lanes.env_t + 1)
                raise
            if all_done or after_each:
                after_step(env_index, all_done)

    def _watched_step(self, after_step: Callable[[int, int], None], after_each: bool) -> None:
        """The same with clocks, and with a close look at each env's first step."""
        seconds = self._seconds
        for env_index, env, lanes in self._slots:
            begun = perf_counter()
            actions = self._actions.of(lanes)
            sent = perf_counter()
            try:
                result = env.step(actions)
            except Exception as error:
                _locate(error, env_index, "step()")
                raise
            stepped = perf_counter()
            if env_index in self._unchecked_steps:
                check_step_result(result, env_index, lanes.env_t + 1)
                self._unchecked_steps.discard(env_index)
            try:
                all_done = self._store.scatter.write_step(env_index, *result)
            except TypeError:
                check_step_result(result, env_index, lanes.env_t + 1)
                raise
            seconds["timed_scatter"] += perf_counter() - stepped
            seconds["timed_env"] += stepped - sent
            seconds["timed_send"] += sent - begun
            if all_done or after_each:
                after_step(env_index, all_done)


def _locate(error: Exception, env_index: int, call: str) -> None:
    """Let an env's own error say which env it came from."""
    error.add_note(f"fastmarl: raised by {call} of env {env_index}")
