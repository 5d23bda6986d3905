"""Code that runs in the actors of a group; it is quick to import."""

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


class OfThisProcess:
    """Can't be unpickled in another one."""

    def __reduce__(self):
        return made_in, (os.getpid(),)


def made_in(pid):
    if os.getpid() != pid:
        raise LookupError("made elsewhere")
    return OfThisProcess()


def fail(runner, kind):
    if runner.worker_index == 3:
        if kind == "plain":
            raise LookupError("not there")
        if kind == "odd":
            raise UnpicklableError(lambda: None, "more")
        if kind == "odd result":
            return threading.Lock()
        if kind == "generator":
            return (number for number in range(3))
        if kind == "local result":
            return OfThisProcess()
    return runner.worker_index
