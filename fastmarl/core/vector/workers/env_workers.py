"""All worker processes of a runner."""

from __future__ import annotations

import multiprocessing
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.registry import portable
from fastmarl.core.envs.remote import RemoteEnv
from fastmarl.core.errors import ConfigError
from fastmarl.core.vector.workers.process import WorkerOptions, WorkerProcess
from fastmarl.core.vector.workers.worker import WorkerPlan


class EnvWorkers:
    """The worker processes of a runner, each of which runs a range of consecutive envs.

    Args:
        env: Argument of `env_creator()`.
        contexts: Contexts of all envs.
        num_workers: Number of workers, limited to one per env; 0 for one per core.
        options: Options of the processes.
        records_states: True if global states are recorded.
        entropy: (first env of a worker) -> seed of its global generators (Python and NumPy), or None if unseeded.

    Attributes:
        workers: The workers, in the order of their envs.
        envs: A RemoteEnv for each env.

    Raises:
        ConfigError: If `env` cannot be sent to other processes, or this process may not start any. Errors of a
            constructor propagate.
    """

    def __init__(
        self,
        env: Any,
        contexts: list[EnvContext],
        *,
        num_workers: int,
        options: WorkerOptions,
        records_states: bool,
        entropy: Callable[[int], list[int] | None],
    ):
        if multiprocessing.current_process().daemon:
            raise ConfigError(
                'gym_env_vectorize_mode="async" starts worker processes, which multiprocessing forbids in a daemonic '
                'process such as this one; start this process with daemon=False, or set the mode to "sync"'
            )
        n = min(len(contexts), num_workers or len(os.sched_getaffinity(0)))
        self.workers: list[WorkerProcess] = []
        # Runs automatically only if the workers were never closed, or at interpreter exit.
        self._finalizer = weakref.finalize(self, _end_all, self.workers, os.getpid())
        try:
            for indices in np.array_split(np.arange(len(contexts)), n):
                own = [contexts[i] for i in indices]
                plan = WorkerPlan(portable(env), own, records_states, entropy(int(indices[0])), os.getpid())
                self.workers.append(WorkerProcess(plan, options))
                self.workers[-1].start()
            for worker in self.workers:
                worker.finish_start()
        except BaseException:
            self._finalizer()
            raise
        self.envs = [
            RemoteEnv(worker, index, description)
            for worker in self.workers
            for index, description in enumerate(worker.descriptions)
        ]

    def close(self) -> None:
        """Close all envs and terminate all processes; raise the first error from closing an env.

        After an interrupt, call this again.
        """
        if not self._finalizer.alive:
            return
        errors = []
        for worker in self.workers:
            worker.begin_close()
        for worker in self.workers:
            try:
                worker.end_close()
            except Exception as error:
                errors.append(error)
        self._finalizer.detach()
        if errors:
            raise errors[0]


def _end_all(workers: list[WorkerProcess], owner: int) -> None:
    """Terminate the workers of an object that was never closed."""
    if os.getpid() != owner:  # a fork of the runner process inherits its objects, but not its processes
        return
    for worker in workers:
        worker.hang_up()
    for worker in workers:
        worker.end()
