"""After an interrupt (Ctrl-C), a runner with worker processes samples on, and returns what the envs have said."""

import gc
import os
import signal
import weakref
from itertools import count

import psutil
import pytest
from support.interrupts import interrupted
from support.sigints import make_runner
from support.stamped_env import Witness

from fastmarl.core.processes.channel import Channel
from fastmarl.core.vector.workers.env_workers import EnvWorkers
from fastmarl.core.vector.workers.process import WorkerProcess
from fastmarl.runner.loop.envs import Envs

EVERY_NTH_LINE = int(os.environ.get("FASTMARL_EVERY_NTH_LINE", "9"))


RESTART = {function.__code__ for function in (WorkerProcess.restart, WorkerProcess._open, WorkerProcess.finish_start)}


@pytest.mark.slow
def test_a_worker_whose_restart_was_interrupted_is_remade():
    for line in count(0, EVERY_NTH_LINE):
        runner, witness = make_runner({"restart_failed_sub_environments": True, "env_config": {"crash": 50}}), Witness()
        sample = lambda: witness.check(runner.sample(num_timesteps=240), interrupted=False)  # noqa: B023, E731
        was_interrupted = interrupted(sample, codes=RESTART, at=line)
        witness.check(runner.sample(num_timesteps=60), interrupted=True)
        witness.check(runner.sample(num_timesteps=60), interrupted=False)
        runner.stop()
        if not was_interrupted:
            break
    assert line > 20


ENDS = {
    function.__code__
    for function in (
        Envs.close,
        EnvWorkers.close,
        *(WorkerProcess.begin_close, WorkerProcess.end_close, WorkerProcess.hang_up, WorkerProcess.end),
        *(WorkerProcess.kill, Channel.close),
    )
}


@pytest.mark.slow
def test_a_stop_that_was_interrupted_is_finished_by_the_next():
    files = len(os.listdir("/proc/self/fd"))
    for line in count(0, EVERY_NTH_LINE):
        runner = make_runner({})
        pids = [worker.pid for worker in runner.env._workers]
        was_interrupted = interrupted(runner.stop, codes=ENDS, at=line)
        runner.stop()
        assert not any(map(psutil.pid_exists, pids))
        if not was_interrupted:
            break
    assert line > 20
    gc.collect()  # tracebacks
    assert len(os.listdir("/proc/self/fd")) <= files


FORKING = []  # what to call before a fork: hooks can't be unregistered
os.register_at_fork(before=lambda: [call() for call in FORKING])


def raise_sigint():
    signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["fork", "end"])
def test_an_interrupt_arrives_that_comes_where_python_drops_errors(when):
    """In the hooks of a fork, and in what runs when a process object is freed."""
    runner, witness = make_runner({"restart_failed_sub_environments": True, "env_config": {"crash": 50}}), Witness()
    ends = [weakref.finalize(worker._process, raise_sigint) for worker in runner.env._workers if when == "end"]
    FORKING.extend([raise_sigint] if when == "fork" else [])
    with pytest.raises(KeyboardInterrupt):
        runner.sample(num_timesteps=240)
    FORKING.clear()
    for end in ends:
        end.detach()
    witness.check(runner.sample(num_timesteps=60), interrupted=True)
    runner.stop()
