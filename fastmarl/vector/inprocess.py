"""Envs stepped one after the other, in this process."""

from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any

from fastmarl.envs.form import check_step_result
from fastmarl.native._actions import ActionDicts
from fastmarl.vector.results import write_reset, write_step
from fastmarl.vector.state_env import StateRecordingEnv
from fastmarl.vector.wiring import AfterStep, VectorParts, in_order

Slot = tuple[int, Any, Any]  # env index, env, its lanes
ActionDict = Callable[[Any], dict]  # lanes -> actions by agent id
TIMED_EVERY = 31  # ticks, a prime: parts that take turns are all timed. Clocks around each env's calls are not cheap


class InProcessVector:
    """Sends actions, receives steps, and writes them to the store at once: an env may reuse its arrays afterwards.

    Args:
        envs: multi-agent envs (see `fastmarl.envs.base`).
        parts: see there; "timed_" seconds are those of every TIMED_EVERY-th tick.
        remake: makes the env of an index anew, in its place in `envs`.

    Attributes:
        n_stepping: envs that were sent actions, and whose steps have not been recorded.
    """

    def __init__(self, envs: list[Any], parts: VectorParts, remake: Callable[[int], None]):
        self.envs = envs
        self._env_states = parts.env_states
        self._failures = parts.failures
        self._make_anew = remake
        self._seeds = parts.seeds
        self._store = parts.store
        self._actions = ActionDicts(parts.store.table, parts.env_actions)
        self._slots = [(i, self._recording(i), lanes) for i, lanes in enumerate(parts.store.table.envs)]
        self._resting: set[int] = set()
        self._active = self._slots  # all, or those that don't rest
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
        """Parts of the envs that take turns, by number, in their order from now on; [] if there are none."""
        return []

    def resume(self, env_indices: Iterable[int], turns: list[int]) -> None:
        """These envs are in the midst of the episodes that the store has of them. `turns()` had given these; those of
        another number of parts don't matter."""

    def rest(self, env_indices: Iterable[int]) -> None:
        """These envs have no episode, and are not stepped until they are reset."""
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
            except Exception as error:
                _locate(error, env_index, "reset()")
                self._restart(env_index, error)
        write_reset(self._store, env_index, result, self._unchecked_resets)

    def send(self) -> int:
        """Have all envs stepped that don't rest; returns their number."""
        self.n_stepping = len(self._active)
        return self.n_stepping

    def recv(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Record the envs' steps.

        Args:
            after_step: called with (env indices, flags of `__all__`) when envs' steps are recorded,
            after_each: after every step, or else only after those that end an episode.
        """
        self._step(self._active, self._actions.of, after_step, after_each)

    def forget(self) -> None:
        """After an error: record no steps under way. All envs will be reset."""
        self.n_stepping = 0

    def _step(self, slots: list[Slot], action_dict: ActionDict, after_step: AfterStep, after_each: bool) -> None:
        """Step these envs."""
        self._ticks += 1
        if self._unchecked_steps or self._ticks % TIMED_EVERY == 0:
            self._watched_step(slots, action_dict, after_step, after_each)
            return
        write = self._store.scatter.write_step
        for env_index, env, lanes in slots:
            actions = action_dict(lanes)
            try:
                result = env.step(actions)
            except Exception as error:
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
        """The same with clocks, and with a close look at each env's first step."""
        seconds = self._seconds
        for env_index, env, lanes in slots:
            begun = perf_counter()
            actions = action_dict(lanes)
            sent = perf_counter()
            try:
                result = env.step(actions)
            except Exception as error:
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
        """The env, or it with its states recorded."""
        env = self.envs[env_index]
        return StateRecordingEnv(env, self._env_states[env_index]) if self._env_states else env

    def _step_failed(self, env_index: int, error: Exception, after_step: AfterStep) -> None:
        """Go on with a new env, or raise the error."""
        _locate(error, env_index, "step()")
        self._restart(env_index, error)
        all_done = self._failures.end_episode(env_index)
        self.n_stepping -= 1
        after_step([env_index], [all_done])

    def _restart(self, env_index: int, error: Exception) -> None:
        self._failures.restart([env_index], error, partial(self._make_anew, env_index))
        resting, self._resting = self._resting, set()
        self._active = self._slots
        self._slots[env_index] = env_index, self._recording(env_index), self._store.table.envs[env_index]
        self._let_rest(resting)


class SplitVector(InProcessVector):
    """The same in parts: while one is being stepped, others' actions are chosen. In one process that saves no time; it
    gives what worker processes give with so many splits.

    Args:
        n_splits: parts; env i is in part i % n_splits.
    """

    def __init__(self, envs: list[Any], parts: VectorParts, remake: Callable[[int], None], n_splits: int):
        super().__init__(envs, parts, remake)
        indices = range(len(envs))
        self._parts = [list(indices[part::n_splits]) for part in range(min(n_splits, len(envs)))]
        self._sent: dict[Any, dict] = {}  # lanes -> actions
        self._stepping: list[list[int]] = []  # parts that were sent actions, in that order
        self._idle = list(self._parts)

    def send(self) -> int:
        """Have all envs stepped that have no actions yet and don't rest; returns their number."""
        n_sent = 0
        going = [part for part in self._idle if not self._resting.issuperset(part)]
        for part in going:
            for env_index in part:
                if env_index not in self._resting:
                    lanes = self._slots[env_index][2]
                    self._sent[lanes] = self._actions.of(lanes)
                    n_sent += 1
        self._stepping += going
        self._idle = [part for part in self._idle if part not in going]
        self.n_stepping += n_sent
        return n_sent

    def turns(self) -> list[int]:
        return [self._parts.index(part) for part in self._idle]

    def resume(self, env_indices: Iterable[int], turns: list[int]) -> None:
        self._idle = in_order(self._parts, turns)

    def recv(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Record the steps of the part that was sent actions first; see `InProcessVector.recv`."""
        part = self._stepping.pop(0)
        self._idle.append(part)
        slots = [slot for slot in map(self._slots.__getitem__, part) if slot[2] in self._sent]
        self._step(slots, self._sent.pop, after_step, after_each)

    def forget(self) -> None:
        super().forget()
        self._sent.clear()
        self._stepping, self._idle = [], list(self._parts)


def _locate(error: Exception, env_index: int, call: str) -> None:
    """Let an env's own error say which env it came from."""
    error.add_note(f"fastmarl: raised by {call} of env {env_index}")
