"""What runs in the actors of a group; importing it is quick."""

import os
import threading

from fastmarl.batches import columns
from support.trouble import UnpicklableError


def make_batch(episodes, module):
    """Columns, and the seeds of the episodes that began."""
    batch = columns(episodes)["default_policy"]
    return {**batch, "seeds": [episode.reset_seed for episode in episodes if episode.env_t_started == 0]}


def pid_of(runner):
    return os.getpid()


def connectors_of(runner):
    return runner.env_to_module.get_state()


def fail(runner, kind):
    if runner.worker_index == 3:
        if kind == "plain":
            raise LookupError("not there")
        if kind == "odd":
            raise UnpicklableError(lambda: None, "more")
        if kind == "odd result":
            return threading.Lock()
    return runner.worker_index
