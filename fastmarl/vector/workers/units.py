"""What of the workers' envs is stepped together, and what is waited for first."""

from __future__ import annotations

import pickle
import select
from collections.abc import Iterator
from itertools import takewhile
from time import monotonic

from fastmarl.vector.workers.process import WorkerProcess
from fastmarl.vector.workers.worker import STEP


class Unit:
    """The envs of one worker that are in the same part.

    Args:
        worker: where they are.
        part: its number.
        places: of the envs in the worker.

    Attributes:
        env_indices: of the envs.
        envs: (place, env index) of each.
        is_answered: whether there will be an answer; not if the worker was lost since.
        number: of the answer.
        sent_at: by `monotonic()`.
    """

    def __init__(self, worker: WorkerProcess, part: int, places: list[int]):
        self.worker = worker
        self.part = part
        self.places = places
        self.env_indices = [worker.env_indices[place] for place in places]
        self.envs = list(zip(places, self.env_indices, strict=True))
        self.is_answered = False
        self.number = 0
        self.sent_at = 0.0
        self._usual_message = STEP + pickle.dumps((places, {}))

    def send(self, given: dict[int, dict], lost: set[int]) -> None:
        """Have the envs stepped.

        Args:
            given: place -> actions, where they have no place in the shared memory.
            lost: places of envs that are not to be stepped.
        """
        message = self._usual_message
        if given or lost:
            message = STEP + pickle.dumps(([place for place in self.places if place not in lost], given))
        self.sent_at = monotonic()
        self.number = self.worker.send(message)
        self.is_answered = True


def make_units(workers: list[WorkerProcess], num_splits: int) -> list[Unit]:
    """Part after part, and in each in the order of the envs."""
    units = []
    for part in range(num_splits):
        for worker in workers:
            places = [place for place, i in enumerate(worker.env_indices) if i % num_splits == part]
            if places:
                units.append(Unit(worker, part, places))
    return units


def in_turn(stepping: list[Unit]) -> Iterator[Unit]:
    """All units of the part that has been stepped for longest. Each may be taken off the list meanwhile."""
    part = stepping[0].part
    yield from list(takewhile(lambda unit: unit.part == part, stepping))


def first_ready(stepping: list[Unit], batch_size: int) -> Iterator[Unit]:
    """Units with so many envs at least, or all: those that are ready, the ones that were sent first before others.

    A worker that takes too long is given up. Each unit must be taken off the list before the next one is asked for.
    """
    while stepping and batch_size > 0:
        ready = _wait(stepping)
        for unit in list(stepping):
            if unit.worker in ready and batch_size > 0:
                ready.discard(unit.worker)  # of its next unit nothing is known yet
                batch_size -= len(unit.env_indices)
                yield unit


def _wait(stepping: list[Unit]) -> set[WorkerProcess]:
    """Workers that have an answer to their first unit, one at least."""
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
