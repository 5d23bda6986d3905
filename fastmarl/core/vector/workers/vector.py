"""Vector of envs that worker processes step in parallel."""

from __future__ import annotations

import pickle
import select
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from time import monotonic, perf_counter
from typing import Any

from fastmarl.core.errors import EnvWorkerError
from fastmarl.core.native._actions import ActionDicts
from fastmarl.core.vector.inprocess import write_reset, write_step
from fastmarl.core.vector.turns import TakesTurns
from fastmarl.core.vector.wiring import AfterStep, VectorEnv, VectorParts
from fastmarl.core.vector.workers.env_workers import EnvWorkers
from fastmarl.core.vector.workers.process import WorkerProcess, error_of
from fastmarl.core.vector.workers.worker import RESET, STEP, EnvFailure, Extra


class Unit:
    """Envs of a worker that are stepped together.

    Args:
        worker: The worker.
        indices: Indices of the envs in the worker.

    Attributes:
        envs: (index, env index) of each env.
        is_answered: True if an answer is expected; False if nothing was sent, or the worker was lost meanwhile.
        number: Number of the answer.
        sent_at: Time of the last message, from `monotonic()`.
    """

    def __init__(self, worker: WorkerProcess, indices: list[int]):
        self.worker = worker
        self.envs = [(index, worker.env_indices[index]) for index in indices]
        self.is_answered = False
        self.number = 0
        self.sent_at = 0.0
        self._usual_message = STEP + pickle.dumps((indices, {}))

    def send(self, given: dict[int, dict], lost: set[int]) -> None:
        """Send a message to step the envs.

        Args:
            given: {index: actions} for actions that do not fit in shared memory.
            lost: Indices of envs to skip.
        """
        message = self._usual_message
        if given or lost:
            message = STEP + pickle.dumps(([index for index, _ in self.envs if index not in lost], given))
        self.sent_at = monotonic()
        self.number = self.worker.send(message)
        self.is_answered = True


def make_splits(workers: list[WorkerProcess], num_splits: int, *, each_alone: bool) -> list[tuple[Unit, ...]]:
    """Divide the envs into splits, and each split into one unit per worker.

    Returns:
        Parts, in order of their splits: one per split, or one per unit if `each_alone`.
    """
    parts: list[tuple[Unit, ...]] = []
    for split in range(num_splits):
        units = []
        for worker in workers:
            indices = [index for index, i in enumerate(worker.env_indices) if i % num_splits == split]
            if indices:
                units.append(Unit(worker, indices))
        parts += [(unit,) for unit in units] if each_alone else [tuple(units)]
    return parts


def first_ready(stepping: list[Unit], batch_size: int) -> Iterator[Unit]:
    """Remove units from the list and yield them until they contain `batch_size` envs or the list is empty.

    Ready units are yielded in the order in which they were sent. A worker that takes too long is treated as lost.
    """
    while stepping and batch_size > 0:
        ready = _wait(stepping)
        for unit in list(stepping):
            if unit.worker in ready and batch_size > 0:
                ready.discard(unit.worker)  # its next unit may not be ready yet
                batch_size -= len(unit.envs)
                stepping.remove(unit)
                yield unit


def _wait(stepping: list[Unit]) -> set[WorkerProcess]:
    """Wait until at least one worker has answered its first unit or timed out; return all workers that have."""
    first: dict[WorkerProcess, Unit] = {}
    for unit in stepping:
        first.setdefault(unit.worker, unit)
    ready = {worker for worker, unit in first.items() if not unit.is_answered or worker.has_answer(unit.number)}
    waiting = {worker.sock.fileno(): worker for worker in first if worker not in ready}
    poll = select.poll()
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    left = min((worker.seconds_left(first[worker].sent_at) for worker in waiting.values()), default=0.0)
    ready |= {waiting[fd] for fd, _ in poll.poll(0 if ready else max(0.0, 1e3 * left))}
    for worker in waiting.values():
        if worker not in ready and worker.seconds_left(first[worker].sent_at) <= 0:
            worker.give_up()
            ready.add(worker)
    return ready


NOTHING = Extra()


class ProcessVector(TakesTurns[tuple[Unit, ...]], VectorEnv):
    """Sends actions to workers, and writes the results of their envs to the store, env by env.

    Order and results are the same as in `SplitVector`, unless a batch size is set.

    Args:
        workers: The workers that run all envs.
        parts: See `VectorParts`.
    """

    def __init__(self, workers: EnvWorkers, parts: VectorParts):
        self._batch_size = parts.batch_size
        super().__init__(make_splits(workers.workers, parts.num_splits, each_alone=parts.batch_size is not None))
        self.envs = workers.envs
        self.num_envs = len(parts.seeds)
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
        self._resting: set[int] = set()
        self._lost: set[int] = set()  # envs lost with their worker, whose episodes have not been ended yet

    # Resetting.

    def reset(self, env_indices: Iterable[int]) -> None:
        """Reset these envs and write their first observations."""
        wanted = set(env_indices)
        self._lost -= wanted
        self._resting -= wanted
        resets = []
        for worker in self._workers:
            indices = [index for index, i in enumerate(worker.env_indices) if i in wanted]
            if indices:
                if not worker.is_started:  # an interrupt arrived during its restart
                    worker.restart()
                resets.append((worker, indices, worker.send(self._resets(worker, indices))))
        for worker, indices, number in resets:
            self._finish_resets(worker, indices, number)

    def _resets(self, worker: WorkerProcess, indices: list[int]) -> bytes:
        """Return the message that requests these resets, with seeds."""
        resets = [(index, self._seeds.take(worker.env_indices[index])) for index in indices]
        return RESET + pickle.dumps(resets)

    def _finish_resets(self, worker: WorkerProcess, indices: list[int], number: int) -> None:
        """Write the first observations from a worker; recreate failed envs, and reset them again."""
        extras: dict[int, Extra] | None = None
        while indices:
            index = indices[0]
            try:
                if extras is None:
                    extras = worker.recv(number) or {}
                extra = extras.get(index, NOTHING)
                if extra.failure is None:
                    result = self._result(worker, index, extra, worker.slots[index].results.read_reset)
                    write_reset(self._store, worker.env_indices[index], result, self._unchecked_resets)
                    del indices[0]
                else:
                    self._restart_env(worker, index, extra.failure)
                    extras |= {index: NOTHING, **(worker.request(self._resets(worker, [index])) or {})}
            except EnvWorkerError as lost:
                self._restart_worker(worker, lost)
                self._lost -= {worker.env_indices[index] for index in indices}
                number, extras = worker.send(self._resets(worker, indices)), None

    def rest(self, env_indices: Iterable[int]) -> None:
        """Mark envs as having no episode; they are not stepped until they are reset."""
        self._resting.update(env_indices)

    # Stepping.

    def _is_awake(self, part: tuple[Unit, ...]) -> bool:
        return any(env_index not in self._resting for unit in part for _, env_index in unit.envs)

    def _send(self, parts: list[tuple[Unit, ...]]) -> int:
        begun = perf_counter()
        n_sent = sum(map(self._send_actions, chain.from_iterable(parts)))
        self._seconds["timed_send"] += perf_counter() - begun
        return n_sent

    def recv(self, after_step: AfterStep, *, after_each: bool) -> None:
        """Record the steps of the next part; see `InProcessVector.recv`."""
        seconds = self._seconds
        begun = perf_counter()
        for unit in self._next_units():
            extras = self._answer(unit)
            received = perf_counter()
            elsewhere = seconds["after_step"]
            if extras or self._lost or self._unchecked_steps or self._env_states or self._resting:
                self._write_each(unit, extras, after_step, after_each)
            else:
                self._write_steps(unit, after_step, after_each)
            seconds["timed_env"] += received - begun
            begun = perf_counter()
            seconds["timed_scatter"] += begun - received - (seconds["after_step"] - elsewhere)

    def forget(self) -> None:
        """Drop pending steps after an error or an interrupt. All envs will be reset.

        Workers execute messages in order, so until a worker has answered the reset, it may still write earlier results
        to the shared memory. After an interrupt, call this again.
        """
        for worker in self._workers:
            worker.forget()
        self._begin_turns()

    def _next_units(self) -> Iterator[Unit]:
        """Yield the units of the part that received actions first; with a batch size, the first ready units."""
        if self._batch_size is None:
            yield from self._end_turn(self._stepping[0])
        else:
            for unit in first_ready([unit for (unit,) in self._stepping], self._batch_size):
                self._end_turn((unit,))
                yield unit

    def _send_actions(self, unit: Unit) -> int:
        """Send actions to the envs of the unit; return the number of envs that are not resting."""
        given: dict[int, dict] = {}
        lost: set[int] = set()  # includes resting envs
        n_resting = 0
        slots, lanes, actions_of = unit.worker.slots, self._lanes, self._actions.of
        for index, env_index in unit.envs:
            if env_index in self._lost or env_index in self._resting:
                lost.add(index)
                n_resting += env_index in self._resting
                continue
            actions = actions_of(lanes[env_index])
            if not slots[index].actions.write(actions):
                given[index] = actions
        if n_resting == len(unit.envs):
            unit.is_answered = False
        else:
            unit.send(given, lost)
        return len(unit.envs) - n_resting

    def _answer(self, unit: Unit) -> dict[int, Extra]:
        """Wait for the answer {index: parts of the result outside shared memory}; return {} if the worker is lost."""
        if unit.is_answered:
            try:
                return unit.worker.recv(unit.number) or {}
            except EnvWorkerError as lost:
                self._restart_worker(unit.worker, lost)
        return {}

    def _write_steps(self, unit: Unit, after_step: AfterStep, after_each: bool) -> None:
        """Record the results of a unit, all of which are in shared memory."""
        slots, write = unit.worker.slots, self._store.scatter.write_step
        for index, env_index in unit.envs:
            all_done = write(env_index, *slots[index].results.read({}))
            self.n_stepping -= 1
            if all_done or after_each:
                after_step([env_index], [all_done])

    def _write_each(self, unit: Unit, extras: dict[int, Extra], after_step: AfterStep, after_each: bool) -> None:
        """Like `_write_steps()`, but handles results outside shared memory, checks, and failed or resting envs."""
        for index, env_index in unit.envs:
            extra = extras.get(index, NOTHING)
            if env_index in self._resting:
                continue
            if env_index in self._lost:
                self._end_episode(env_index, after_step)
            elif extra.failure is not None:
                try:
                    self._restart_env(unit.worker, index, extra.failure)
                except EnvWorkerError as lost:  # another env killed the worker
                    self._restart_worker(unit.worker, lost)
                self._end_episode(env_index, after_step)
            else:
                result = self._result(unit.worker, index, extra, unit.worker.slots[index].results.read)
                all_done = write_step(self._store, env_index, result, self._unchecked_steps)
                self.n_stepping -= 1
                if all_done or after_each:
                    after_step([env_index], [all_done])

    def _result(self, worker: WorkerProcess, index: int, extra: Extra, read: Callable[[dict], tuple]) -> Any:
        """Return the result of an env, from `extra` or else from shared memory; record its global state."""
        if self._env_states:
            state = worker.slots[index].results.state if extra.state is None else extra.state[0]
            self._env_states[worker.env_indices[index]].add(state)
        return read(extra.infos or {}) if extra.result is None else extra.result[0]

    # Handling failures.

    def _end_episode(self, env_index: int, after_step: AfterStep) -> None:
        self._lost.discard(env_index)
        all_done = self._failures.end_episode(env_index)
        self.n_stepping -= 1
        after_step([env_index], [all_done])

    def _restart_env(self, worker: WorkerProcess, index: int, failure: EnvFailure) -> None:
        """Recreate an env.

        Raises:
            EnvWorkerError: If its worker is lost.
            Exception: The error of the env, if the env may not be recreated.
        """
        lost = []

        def remake() -> None:
            try:
                worker.remake(index)
            except EnvWorkerError as error:
                lost.append(error)

        self._failures.restart([worker.env_indices[index]], error_of(failure), remake)
        if lost:
            raise lost[0]

    def _restart_worker(self, worker: WorkerProcess, error: EnvWorkerError) -> None:
        """Recreate a lost worker, or raise the error; all of its envs are lost."""
        self._failures.restart(worker.env_indices, error, worker.restart)
        self._lost.update(worker.env_indices)
        for unit in chain.from_iterable(self._stepping):
            unit.is_answered &= unit.worker is not worker
