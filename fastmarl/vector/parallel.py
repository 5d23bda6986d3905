"""Envs stepped in worker processes, at the same time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any

from fastmarl._actions import ActionDicts
from fastmarl.envs.form import check_step_result
from fastmarl.errors import EnvWorkerError
from fastmarl.vector.parts import VectorParts
from fastmarl.vector.processes import EnvWorkers, WorkerProcess, error_of
from fastmarl.vector.results import write_reset
from fastmarl.vector.worker import RESET, STEP, Extra, Failure

NOTHING = Extra()
AfterStep = Callable[[int, int], None]


class ProcessVector:
    """Sends actions to the workers, and writes what comes back to the store, env by env: in the order, and with the
    results, of `InProcessVector`.

    Args:
        workers: with all envs.
        parts: see there.
    """

    def __init__(self, workers: EnvWorkers, parts: VectorParts):
        self.envs = workers.envs
        self._workers = workers.workers
        self._seeds = parts.seeds
        self._store = parts.store
        self._lanes = parts.store.table.envs
        self._actions = ActionDicts(parts.store.table, parts.env_actions)
        self._unchecked_resets = set(range(len(parts.seeds))) if parts.check else set()
        self._unchecked_steps = set(self._unchecked_resets)
        self._seconds = parts.seconds
        self._env_states = parts.env_states
        self._failures = parts.failures
        self._lost: set[int] = set()  # envs that were lost with their worker while another one was reset
        self._ticks = 0

    # Resets.

    def reset(self, env_indices: Iterable[int]) -> None:
        """Reset these envs and write their first observations; only an env's first reset is seeded."""
        wanted = set(env_indices)
        self._lost -= wanted
        places = [[place for place, i in enumerate(w.env_indices) if i in wanted] for w in self._workers]
        errors = [
            self._send_resets(worker, of_worker)
            for worker, of_worker in zip(self._workers, places, strict=True)
        ]  # fmt: skip
        for worker, of_worker, error in zip(self._workers, places, errors, strict=True):
            if of_worker:
                for place, extra in zip(of_worker, self._reset_results(worker, of_worker, error), strict=True):
                    self._write_reset(worker, place, extra)

    def _send_resets(self, worker: WorkerProcess, places: list[int]) -> EnvWorkerError | None:
        """Returns the error if the worker is gone."""
        if places:
            try:
                worker.send(self._resets(worker, places))
            except EnvWorkerError as error:
                return error
        return None

    def _resets(self, worker: WorkerProcess, places: list[int]) -> bytes:
        """The message; seeds are used up."""
        resets = []
        for place in places:
            env_index = worker.env_indices[place]
            seed, self._seeds[env_index] = self._seeds[env_index], None
            resets.append((place, seed))
        return RESET + pickle.dumps(resets)

    def _reset_results(self, worker: WorkerProcess, places: list[int], error: EnvWorkerError | None) -> list[Extra]:
        """What the envs of a worker bring that were told to reset; the worker, if it is lost, is made anew for it."""
        while True:
            try:
                if error is not None:
                    raise error
                extras = worker.recv() or {}
                return [extras.get(place, NOTHING) for place in places]
            except EnvWorkerError as lost:
                self._restart_worker(worker, lost, in_step=False)
                self._lost |= {i for place, i in enumerate(worker.env_indices) if place not in places}
                error = self._send_resets(worker, places)

    def _write_reset(self, worker: WorkerProcess, place: int, extra: Extra) -> None:
        env_index = worker.env_indices[place]
        while extra.failure is not None:
            self._restart_env(worker, place, extra.failure, in_step=False)
            extra = (worker.request(self._resets(worker, [place])) or {}).get(place, NOTHING)
        results = worker.slots[place].results
        result = results.read_reset(extra.infos or {}) if extra.result is None else extra.result[0]
        if self._env_states:
            self._env_states[env_index].add(results.read_state() if extra.state is None else extra.state[0])
        write_reset(self._store, env_index, result, self._unchecked_resets)

    # Steps.

    def step(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Step every env with its agents' actions; see `InProcessVector.step`."""
        self._ticks += 1
        seconds = self._seconds
        begun = perf_counter()
        errors = [self._send_actions(worker) for worker in self._workers]
        sent = perf_counter()
        seconds["timed_send"] += sent - begun
        for worker, error in zip(self._workers, errors, strict=True):
            try:
                if error is not None:
                    raise error
                extras = worker.recv()
            except EnvWorkerError as lost:
                self._restart_worker(worker, lost, in_step=True)
                for env_index in worker.env_indices:
                    self._end_episode(env_index, after_step)
                continue
            received = perf_counter()
            seconds["timed_env"] += received - sent
            elsewhere = seconds["after_step"]
            self._write_steps(worker, extras or {}, after_step, after_each)
            sent = perf_counter()
            seconds["timed_scatter"] += sent - received - (seconds["after_step"] - elsewhere)

    def _send_actions(self, worker: WorkerProcess) -> EnvWorkerError | None:
        """Returns the error if the worker is gone."""
        given: dict[int, dict | None] = {}
        for place, (env_index, slots) in enumerate(zip(worker.env_indices, worker.slots, strict=True)):
            if env_index in self._lost:
                given[place] = None
                continue
            actions = self._actions.of(self._lanes[env_index])
            if not slots.actions.write(actions):
                given[place] = actions
        try:
            worker.send(STEP + pickle.dumps(given) if given else STEP)
        except EnvWorkerError as error:
            return error
        return None

    def _write_steps(
        self, worker: WorkerProcess, extras: dict[int, Extra], after_step: AfterStep, after_each: bool
    ) -> None:
        """Record what the worker's envs have brought."""
        for place, env_index in enumerate(worker.env_indices):
            extra = extras.get(place, NOTHING)
            if env_index in self._lost:
                self._end_episode(env_index, after_step)
            elif extra.failure is not None:
                self._restart_env(worker, place, extra.failure, in_step=True)
                self._end_episode(env_index, after_step)
            else:
                all_done = self._write_step(worker, place, extra)
                if all_done or after_each:
                    after_step(env_index, all_done)

    def _write_step(self, worker: WorkerProcess, place: int, extra: Extra) -> int:
        env_index = worker.env_indices[place]
        results = worker.slots[place].results
        result: Any = results.read(extra.infos or {}) if extra.result is None else extra.result[0]
        if self._env_states:
            self._env_states[env_index].add(results.read_state() if extra.state is None else extra.state[0])
        if env_index in self._unchecked_steps:
            check_step_result(result, env_index, self._lanes[env_index].env_t + 1)
            self._unchecked_steps.discard(env_index)
        try:
            return self._store.scatter.write_step(env_index, *result)
        except TypeError:
            check_step_result(result, env_index, self._lanes[env_index].env_t + 1)
            raise

    # Failures.

    def _end_episode(self, env_index: int, after_step: AfterStep) -> None:
        self._lost.discard(env_index)
        after_step(env_index, self._failures.end_episode(env_index))

    def _restart_env(self, worker: WorkerProcess, place: int, failure: Failure, *, in_step: bool) -> None:
        """Have one env made anew, or raise its error."""
        env_indices, remake = [worker.env_indices[place]], partial(worker.remake, place)
        self._failures.restart(env_indices, error_of(failure), self._ticks, in_step, remake, self._seeds)

    def _restart_worker(self, worker: WorkerProcess, error: EnvWorkerError, *, in_step: bool) -> None:
        """Have a worker that is lost made anew with all its envs, or raise the error."""
        self._failures.restart(worker.env_indices, error, self._ticks, in_step, worker.restart, self._seeds)
