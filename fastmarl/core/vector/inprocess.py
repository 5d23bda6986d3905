"""Vectors that step envs sequentially in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Any

from fastmarl.core.envs.form import check_reset_result, check_step_result
from fastmarl.core.errors.exits import as_error
from fastmarl.core.native._actions import ActionDicts
from fastmarl.core.store.env_states import EnvStates
from fastmarl.core.store.store import RowStore
from fastmarl.core.vector.turns import TakesTurns
from fastmarl.core.vector.wiring import AfterStep, VectorEnv, VectorParts

Slot = tuple[int, Any, Any]  # env index, env, its lanes
ActionDict = Callable[[Any], dict]  # lanes -> actions, keyed by agent id
TIMED_EVERY = 31  # ticks, as reading clocks costs time; prime, so that all alternating parts are timed


class InProcessVector(VectorEnv):
    """Steps envs one by one and writes each step to the store immediately, so that envs may reuse their arrays.

    Args:
        envs: Multi-agent envs (see `fastmarl.envs.MultiAgentEnv`).
        parts: See `VectorParts`; "timed_" seconds are measured in the first tick and every TIMED_EVERY-th after it.
        remake: Function that replaces the env at an index of `envs` with a new one.

    Attributes:
        n_stepping: Number of envs whose actions were sent but whose steps are not recorded yet.
    """

    def __init__(self, envs: list[Any], parts: VectorParts, remake: Callable[[int], None]):
        self.envs = envs
        self.num_envs = len(envs)
        self._env_states = parts.env_states
        self._failures = parts.failures
        self._remake = remake
        self._seeds = parts.seeds
        self._store = parts.store
        self._actions = ActionDicts(parts.store.table, parts.env_actions)
        self._slots = [(i, self._recording(i), lanes) for i, lanes in enumerate(parts.store.table.envs)]
        self._resting: set[int] = set()
        self._active = self._slots  # all envs that are not resting
        self._unchecked_resets = set(range(len(envs))) if parts.check else set()
        self._unchecked_steps = set(self._unchecked_resets)
        self._ticks = 0
        self._seconds = parts.seconds
        self.n_stepping = 0

    def reset(self, env_indices: Iterable[int]) -> None:
        """Reset these envs and write their first observations."""
        self._let_rest(self._resting.difference(env_indices))
        for env_index in env_indices:
            self._reset(env_index)

    def turns(self) -> list[int]:
        """Return an empty list, because all envs are stepped together; see `TakesTurns.turns`."""
        return []

    def resume(self, env_indices: Sequence[int], turns: list[int]) -> None:
        """Do nothing, as continuing stored episodes needs no preparation here; see `TakesTurns.resume`."""

    def rest(self, env_indices: Iterable[int]) -> None:
        """Mark envs as having no episode; they are not stepped until they are reset."""
        self._let_rest(self._resting.union(env_indices))

    def _let_rest(self, env_indices: set[int]) -> None:
        if self._resting != env_indices:
            self._resting = env_indices
            self._active = [slot for slot in self._slots if slot[0] not in env_indices] if env_indices else self._slots

    def _reset(self, env_index: int) -> None:
        while True:
            try:
                result = self._slots[env_index][1].reset(seed=self._seeds.take(env_index))
                break
            except (Exception, SystemExit) as error:
                self._restart(env_index, error, "reset()")
        write_reset(self._store, env_index, result, self._unchecked_resets)

    def send(self) -> int:
        """Start a step of all envs except resting ones; return their number."""
        self.n_stepping = len(self._active)
        return self.n_stepping

    def recv(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Record the steps of the envs.

        Args:
            after_step: Called with (env indices, flags of `__all__`) after steps were recorded.
            after_each: True to call it after every step, not only after steps that end an episode.
        """
        self._step(self._active, self._actions.of, after_step, after_each)

    def forget(self) -> None:
        """Drop pending steps after an error. All envs will be reset."""
        self.n_stepping = 0

    def _step(self, slots: list[Slot], action_dict: ActionDict, after_step: AfterStep, after_each: bool) -> None:
        """Step these envs and record the results."""
        self._ticks += 1
        if self._unchecked_steps or self._ticks % TIMED_EVERY == 1:
            self._watched_step(slots, action_dict, after_step, after_each)
            return
        write = self._store.scatter.write_step
        for env_index, env, lanes in slots:
            actions = action_dict(lanes)
            try:
                result = env.step(actions)
            except (Exception, SystemExit) as error:
                self._step_failed(env_index, error, after_step)
                continue
            try:
                all_done = write(env_index, *result)
            except TypeError:
                check_step_result(result, env_index, lanes.env_t + 1)
                raise
            self.n_stepping -= 1
            if all_done or after_each:
                after_step([env_index], [all_done])

    def _watched_step(
        self, slots: list[Slot], action_dict: ActionDict, after_step: AfterStep, after_each: bool
    ) -> None:
        """Do the same as `_step()`, but measure times and check the first step of each env in detail."""
        seconds = self._seconds
        for env_index, env, lanes in slots:
            begun = perf_counter()
            actions = action_dict(lanes)
            sent = perf_counter()
            try:
                result = env.step(actions)
            except (Exception, SystemExit) as error:
                self._step_failed(env_index, error, after_step)
                continue
            stepped = perf_counter()
            all_done = write_step(self._store, env_index, result, self._unchecked_steps)
            self.n_stepping -= 1
            seconds["timed_scatter"] += perf_counter() - stepped
            seconds["timed_env"] += stepped - sent
            seconds["timed_send"] += sent - begun
            if all_done or after_each:
                after_step([env_index], [all_done])

    def _recording(self, env_index: int) -> Any:
        """Return the env, wrapped if its states are recorded."""
        env = self.envs[env_index]
        return StateRecordingEnv(env, self._env_states[env_index]) if self._env_states else env

    def _step_failed(self, env_index: int, error: Exception | SystemExit, after_step: AfterStep) -> None:
        """Recreate the env and end its episode, or raise the error."""
        try:
            self._restart(env_index, error, "step()")
        finally:
            del error  # see `Failures.restart()`
        all_done = self._failures.end_episode(env_index)
        self.n_stepping -= 1
        after_step([env_index], [all_done])

    def _restart(self, env_index: int, raised: Exception | SystemExit, call: str) -> None:
        """Recreate the env whose `call` failed, or raise the error with a note on its origin."""
        error = as_error(raised)
        error.add_note(f"fastmarl: raised by {call} of env {env_index}")
        try:
            self._failures.restart([env_index], error, partial(self._remake, env_index))
        finally:
            del error, raised  # see `_step_failed()`
        self._slots[env_index] = env_index, self._recording(env_index), self._store.table.envs[env_index]
        self._active = [self._slots[i] for i, _, _ in self._active]


class SplitVector(TakesTurns[list[int]], InProcessVector):
    """Steps envs in parts: one part is stepped while actions are chosen for the others.

    This saves no time in a single process, but returns the same results as worker processes with the same splits.

    Args:
        envs, parts, remake: See `InProcessVector`.
        n_splits: Number of parts; env i is in part i % n_splits.
    """

    def __init__(self, envs: list[Any], parts: VectorParts, remake: Callable[[int], None], n_splits: int):
        InProcessVector.__init__(self, envs, parts, remake)
        TakesTurns.__init__(self, [list(range(part, len(envs), n_splits)) for part in range(n_splits)])
        self._sent: dict[Any, dict] = {}  # lanes -> actions

    def _is_awake(self, part: list[int]) -> bool:
        return not self._resting.issuperset(part)

    def _send(self, parts: list[list[int]]) -> int:
        n_before = len(self._sent)
        for env_index in chain.from_iterable(parts):
            if env_index not in self._resting:
                lanes = self._slots[env_index][2]
                self._sent[lanes] = self._actions.of(lanes)
        return len(self._sent) - n_before

    def recv(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Record the steps of the part that received actions first; see `InProcessVector.recv`."""
        part = self._end_turn(self._stepping[0])
        slots = [slot for slot in map(self._slots.__getitem__, part) if slot[2] in self._sent]
        self._step(slots, self._sent.pop, after_step, after_each)

    def forget(self) -> None:
        self._begin_turns()
        self._sent.clear()


class StateRecordingEnv:
    """Wraps an env to record its state after each `reset()` and `step()`."""

    def __init__(self, env: Any, states: EnvStates):
        self._env = env
        self._states = states

    def reset(self, *, seed: int | None = None) -> tuple[dict, dict]:
        result = self._env.reset(seed=seed)
        self._states.add(self._env.state())
        return result

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        result = self._env.step(actions)
        self._states.add(self._env.state())
        return result


def write_reset(store: RowStore, env_index: int, result: Any, unchecked: set[int]) -> None:
    """Write the first observations of an episode; check them in detail if the env is still in `unchecked`.

    Raises:
        MultiAgentEnvError: If `result` is not a valid result of reset().
    """
    if env_index in unchecked:
        check_reset_result(result, env_index)
        unchecked.discard(env_index)
    try:
        store.scatter.write_reset(env_index, *result)
    except TypeError:
        check_reset_result(result, env_index)
        raise


def write_step(store: RowStore, env_index: int, result: Any, unchecked: set[int]) -> int:
    """Write a step; check it in detail if the env is still in `unchecked`.

    Returns:
        The flags of `__all__`; see `Scatter.write_step()`.

    Raises:
        MultiAgentEnvError: If `result` is not a valid result of step().
    """
    env_t = store.table.envs[env_index].env_t + 1
    if env_index in unchecked:
        check_step_result(result, env_index, env_t)
        unchecked.discard(env_index)
    try:
        return store.scatter.write_step(env_index, *result)
    except TypeError:
        check_step_result(result, env_index, env_t)
        raise
