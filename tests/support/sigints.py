"""Real interrupts of a runner with worker processes, at random times; after each, it must sample on as before.

A script, since an interrupt that comes too late would end the tests: `python -m support.sigints COUNT SEED`.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time

import numpy as np

import fastmarl
from support.told import Told, Witness

KINDS = (
    {},
    {"worker_num_splits": 2, "env_config": {"long": 3}},
    {"worker_num_splits": 2, "env_batch_size": 1, "env_config": {"long": 5}},
    {"restart_failed_sub_environments": True, "env_config": {"crash": 60, "long": 7}, "max_restarts": 9},
)
STEP_TIMEOUT_S = 20
AT_MOST_S = 0.05  # from the first call to the interrupt
SENDER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(float(line))
    os.kill(os.getppid(), signal.SIGINT)
    print(end=".", flush=True)
"""


def make_runner(kind):
    config = fastmarl.EnvRunnerConfig(
        env=Told,
        num_envs_per_env_runner=4,
        gym_env_vectorize_mode="async",
        num_env_workers=2,
        env_worker_start_method="fork",
        keep_dtype=True,
        step_timeout_s=STEP_TIMEOUT_S,
        seed=0,
        **{"model_config": {"fcnet_hiddens": [4]}, **kind},
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample(num_timesteps=9, random_actions=True, force_reset=True)  # imports and compiles what a call needs
    return runner


def is_sent(sender, timeout):
    """Whether the sender has said so, which is heard once."""
    ready, _, _ = select.select([sender.stdout], [], [], timeout)
    return bool(ready) and bool(os.read(sender.stdout.fileno(), 1))


def interrupt(runner, witness, sender, rng):
    """Interrupt the runner once, somewhere; then see how it goes on. Returns the slowest call's seconds."""
    interrupted = False
    try:
        sender.stdin.write(f"{AT_MOST_S * rng.random()}\n".encode())
        sender.stdin.flush()
        while not is_sent(sender, 0.0):  # Python itself drops one that comes in a destructor, or while it forks
            chunks = runner.sample(num_timesteps=int(rng.integers(1, 60)), random_actions=True)
            witness.check(chunks, interrupted=interrupted)
            interrupted = True  # the next call's chunks may be lost between there and here
    except KeyboardInterrupt:
        is_sent(sender, 10.0)
    except Exception:
        with contextlib.suppress(KeyboardInterrupt):  # which is still to come
            time.sleep(5)
        raise
    slowest = 0.0
    for call in range(3):
        begun = time.monotonic()
        chunks = runner.sample(num_timesteps=80, random_actions=True)
        slowest = max(slowest, time.monotonic() - begun)
        witness.check(chunks, interrupted=call == 0)
    return slowest


def main(count, seed):
    """Writes what has happened, as JSON."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(seed)
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    report = {"interrupts": 0, "slowest_s": 0.0, "chunks": 0, "wrong": []}
    for number, kind in enumerate(KINDS):
        runner, witness = make_runner(kind), Witness()
        for _ in range(count // len(KINDS) + (number < count % len(KINDS))):
            try:
                report["slowest_s"] = max(report["slowest_s"], interrupt(runner, witness, sender, rng))
            except Exception as error:
                report["wrong"].append(f"{kind}: {error!r:.2000}")
                runner.stop()
                runner, witness = make_runner(kind), Witness()
            report["interrupts"] += 1
        report["chunks"] += witness.n_chunks
        runner.stop()
    sender.stdin.close()
    sender.wait()
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
