"""Samplers in the background, and what is left of their processes."""

import time
from pathlib import Path

import psutil

import fastmarl
from fastmarl.distributed import BackgroundSampler
from support.trouble import Trouble


def make_sampler(env=Trouble, *, max_policy_lag=1, env_config=None, runner=None, **options):
    config = fastmarl.EnvRunnerConfig(
        env=env,
        env_config=env_config or {},
        num_envs_per_env_runner=2,
        rollout_fragment_length=9,
        seed=1,
        model_config={"fcnet_hiddens": [4]},
        **(runner or {}),
    )
    return BackgroundSampler(config, **{"start_method": "fork", "max_policy_lag": max_policy_lag, **options})


def pids_of(sampler):
    return [runner.handle.pid for runner in sampler._fleet.runners]


def assert_gone(pids):
    end = time.monotonic() + 60  # a busy machine takes its time to end one
    while any(map(is_running, pids)):
        assert time.monotonic() < end, "a process is still there"
        time.sleep(0.02)


def assert_they_wait(pids):
    """Check that the threads of these processes come to rest: none of them polls."""
    end = time.monotonic() + 60
    while True:
        before = _run_by_thread(pids)
        assert before, "no process is there"
        time.sleep(0.2)
        if (now := _run_by_thread(pids)) == before:
            return
        assert time.monotonic() < end, f"threads still run: from {before} to {now}, in 0.2 s"


def _run_by_thread(pids):
    """Thread -> how long it has run and waited for a processor in ns, and how often it was given one."""
    files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return {file.parts[4]: file.read_text().strip() for file in files}


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def take(sampler, n, **options):
    """Take n batches from the sampler."""
    for _ in range(n):
        sampler.next(**options)


def notes_of(caught):
    """Return the notes of an error that a test has caught."""
    return "\n".join(caught.value.__notes__)
