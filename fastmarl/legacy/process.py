"""Process-wide effects of a worker: environment variables, the log level, the global worker."""

import logging
import os
import weakref
from typing import Any

from fastmarl.legacy.config import RolloutWorkerConfig

_last: list[weakref.ref[Any]] = []


def get_global_worker() -> Any:
    """Return the `RolloutWorker` that was made last in this process; None if there is none, or it has been freed."""
    return _last[0]() if _last else None


def set_up_process(worker: Any, config: RolloutWorkerConfig, worker_index: int) -> None:
    """Make `worker` the global one; set environment variables and the level of the log as its config says."""
    _last[:] = [weakref.ref(worker)]
    given = config.extra_python_environs_for_worker if worker_index else config.extra_python_environs_for_driver
    os.environ.update({name: str(value) for name, value in given.items()})
    if config.log_level is not None:
        logging.getLogger("fastmarl").setLevel(config.log_level)
