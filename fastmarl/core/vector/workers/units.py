"""Units of the workers' envs that are stepped together, and the order in which their answers are taken."""

from __future__ import annotations

import pickle
import select
from collections.abc import Iterator
from time import monotonic

from fastmarl.core.vector.workers.process import WorkerProcess
from fastmarl.core.vector.workers.worker import STEP


class Unit:
    """Envs of one worker that are stepped together.

    Args:
        worker: The worker.
        indices: The worker's indices of the envs.

    Attributes:
        envs: (index, env index) of each env.
        is_answered: True if an answer will come; False if the worker was lost since.
        number: Number of the answer.
        sent_at: Time of the last message, by `monotonic()`.
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
            given: Actions that don't fit in the shared memory, by index.
            lost: Indices of envs that are not to be stepped.
        """
        message = self._usual_message
        if given or lost:
            message = STEP + pickle.dumps(([index for index, _ in self.envs if index not in lost], given))
        self.sent_at = monotonic()
        self.number = self.worker.send(message)
        self.is_answered = True


def make_splits(workers: list[WorkerProcess], num_splits: int, *, each_alone: bool) -> list[tuple[Unit, ...]]:
    """Make units split by split, each split in the order of its envs: one part per split, or one part per unit."""
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
    """Take units off the list until they have `batch_size` envs, or the list is empty.

    Units that are ready are taken in the order in which they were sent. A worker that takes too long is given up.
    """
    while stepping and batch_size > 0:
        ready = _wait(stepping)
        for unit in list(stepping):
            if unit.worker in ready and batch_size > 0:
                ready.discard(unit.worker)  # whether its next unit is ready is not known yet
                batch_size -= len(unit.envs)
                stepping.remove(unit)
                yield unit


def _wait(stepping: list[Unit]) -> set[WorkerProcess]:
    """Return the workers that have an answer to their first unit, at least one."""
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
