"""However a `BackgroundSampler` ends: no process and no memory stays behind."""

import gc
import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.background import assert_gone, assert_they_wait, make_sampler, pids_of, take
from support.process_runners import children

from fastmarl.distributed import BackgroundSampler
from fastmarl.errors import ConfigError, RunnerStoppedError, SamplerProcessError

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_starts_and_ends_leave_nothing_behind():
    def by_close(sampler):
        sampler.close()

    def by_an_error(sampler):
        with pytest.raises(KeyError):
            take(sampler, 9)

    def by_an_error_of_the_learner(sampler):
        with pytest.raises(ZeroDivisionError), sampler:
            raise ZeroDivisionError

    def by_a_kill(sampler):
        os.kill(pids_of(sampler)[0], signal.SIGKILL)
        with pytest.raises(SamplerProcessError):
            take(sampler, 9)

    def by_collection(sampler):
        """When nothing refers to it."""

    def ended(end):
        """Start a sampler and end it; returns its processes."""
        sampler = make_sampler(processes=2, env_config={"trouble": {(1, 30): "raise"}})
        sampler.next()
        pids = pids_of(sampler)
        end(sampler)
        return pids

    ended(by_close)  # starts what is there for all later ones
    gc.collect()
    files, in_dev_shm = len(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    for end in (by_close, by_an_error, by_an_error_of_the_learner, by_a_kill, by_collection):
        pids = ended(end)
        gc.collect()  # also errors that were caught, and what their tracebacks hold
        assert_gone(pids)
        assert not children()
        assert len(os.listdir("/proc/self/fd")) <= files, end.__name__
    assert {name for name in set(os.listdir("/dev/shm")) - in_dev_shm if "fastmarl" in name} == set()


SCRIPT = """
import os, signal, sys, threading, time
import fastmarl
from fastmarl.distributed import BackgroundSampler
from support.trouble import Trouble

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests in its background ignores it
    method, how, mode = sys.argv[1:]
    trouble = {"trouble": {(1, 60): "hang"}} if how == "kill" else {}
    workers = {"gym_env_vectorize_mode": "async", "num_env_workers": 1, "env_worker_start_method": "fork"}
    config = fastmarl.EnvRunnerConfig(
        env=Trouble, env_config=trouble, num_envs_per_env_runner=2, rollout_fragment_length=9,
        **(workers if mode == "async" else {}))
    sampler = BackgroundSampler(config, start_method=method, processes=2)
    sampler.next()
    import psutil
    print(*[child.pid for child in psutil.Process().children(recursive=True)
            if "resource_tracker" not in " ".join(child.cmdline())], flush=True)
    if how == "exit":
        raise SystemExit(3)
    if how == "kill":
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    if how == "interrupt":  # of the whole group, as by Ctrl-C
        threading.Timer(0.2, os.killpg, (0, signal.SIGINT)).start()
    while True:
        sampler.next()
        sampler.set_weights()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "how", "mode", "code"),
    [
        pytest.param("spawn", "exit", "sync", 3, marks=pytest.mark.exhaustive),
        pytest.param("spawn", "interrupt", "sync", -signal.SIGINT, marks=pytest.mark.exhaustive),
        ("fork", "interrupt", "async", -signal.SIGINT),
        ("fork", "kill", "async", -signal.SIGKILL),
    ],
)
def test_processes_end_with_that_of_the_learner(tmp_path, method, how, mode, code):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = subprocess.run(
        [sys.executable, str(script), method, how, mode],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        process_group=0,
    )
    assert result.returncode == code, result.stderr
    pids = list(map(int, result.stdout.split()))
    assert len(pids) == (4 if mode == "async" else 2)
    assert_gone(pids)
    if how == "interrupt":
        assert result.stderr.count("KeyboardInterrupt") == 1  # that of the learner, who was in next() or set_weights()
    else:
        assert not result.stderr


def test_an_interrupt_while_a_process_starts_does_not_block_later_ones(monkeypatch):
    def interrupted(how, signals):
        before = set_mask(how, signals)
        if signal.SIGINT in signals:  # Python's own looks for interrupts before it returns
            raise KeyboardInterrupt
        return before

    set_mask = signal.pthread_sigmask
    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_sampler()
    assert signal.SIGINT not in set_mask(signal.SIG_BLOCK, ())
    assert not children()


def test_an_interrupt_while_a_batch_arrives_leaves_no_file_open(monkeypatch):
    def interrupted(*args):
        received = recv_fds(*args)
        signal.raise_signal(signal.SIGINT)
        return received

    def batches():
        files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return [file for file in files if os.path.exists(file) and "fastmarl-batch" in os.readlink(file)]

    recv_fds = socket.recv_fds
    sampler = make_sampler()
    sampler.next()
    gc.collect()
    assert not batches()
    monkeypatch.setattr(socket, "recv_fds", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sampler.next()
    sampler.close()
    gc.collect()
    assert not batches()


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_a_sampler_that_is_closed_within_next_is_gone(max_restarts):
    """As by the handler of a signal."""

    def close(*args):
        sampler.close()

    sampler = make_sampler(env_config={"trouble": {(1, 12): "hang"}}, processes=2, max_restarts=max_restarts)
    sampler.next()
    pids = pids_of(sampler)
    before = signal.signal(signal.SIGUSR1, close)
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(RunnerStoppedError):
            sampler.next()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert_gone(pids)
    assert not children()


def leave(sampler):
    """At the end of a `with` block."""
    sampler.__exit__(None, None, None)


@pytest.mark.parametrize("end", [BackgroundSampler.close, leave])
def test_a_sampler_that_another_thread_ends_stops_next(end):
    sampler = make_sampler(env_config={"trouble": {(1, 12): "hang"}})
    sampler.next()
    pids = pids_of(sampler)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sampler.next)
        while sampler._fleet._guard.running is None:
            time.sleep(0.01)
        end(sampler)
        with pytest.raises(RunnerStoppedError):
            waiting.result(timeout=60)
    assert_gone(pids)
    assert not children()


@pytest.mark.slow
def test_waiting_processes_take_no_time():
    with make_sampler(processes=2) as sampler:
        sampler.next()
        assert_they_wait(pids_of(sampler))


def test_a_sampler_in_a_daemonic_process_says_why_it_has_no_processes():
    def run(pipe):
        with pytest.raises(ConfigError) as caught:
            make_sampler()
        pipe.send(str(caught.value))

    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run, args=(there,), daemon=True)
    process.start()
    there.close()
    assert "start it with daemon=False" in here.recv()
    process.join()
    here.close()
    process.close()
