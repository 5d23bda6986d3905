"""Real interrupts of runners at random times: each arrives, and after it the runner samples on as before.

A script, since an interrupt that comes too late would end the tests: `python -m support.sigints COUNT SEED`.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

import gymnasium as gym
import numpy as np

import fastmarl
from fastmarl.offline import ParquetReader
from fastmarl.replays import Recording
from support.stamped_env import StampedEnv, Witness

IN_PROCESS = {"gym_env_vectorize_mode": "sync"}
KINDS = (
    IN_PROCESS,
    {},
    {"worker_num_splits": 2, "env_config": {"long": 3}},
    {"worker_num_splits": 2, "env_batch_size": 1, "env_config": {"long": 5}},
    {"restart_failed_sub_environments": True, "env_config": {"crash": 60, "long": 7}, "max_restarts": 9},
)
FILES = (IN_PROCESS, {})  # with `output` and a record of actions
STEP_TIMEOUT_S = 20
AT_MOST_S = 0.05  # from the first call to the interrupt
SENDER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(float(line))
    os.kill(os.getppid(), signal.SIGINT)
    print(end=".", flush=True)
"""


class Clock(fastmarl.MultiAgentEnv):
    """Observations are (env step, seed of the reset): so its episodes can be replayed."""

    def __init__(self, config=None):
        self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-np.inf, np.inf, (2,), np.float64))
        self.action_spaces = dict.fromkeys("ab", gym.spaces.Discrete(1000))

    def reset(self, *, seed=None, options=None):
        self.seed, self.t = seed, 0
        return self._observe(), {}

    def step(self, actions):
        self.t += 1
        rewards = {agent: float(action) for agent, action in actions.items()}
        return self._observe(), rewards, {"__all__": self.t >= 3 + self.seed % 5}, {"__all__": False}, {}

    def _observe(self):
        return {agent: np.array([self.t, self.seed % 1000], np.float64) for agent in "ab"}


class FilesWitness:
    """Looks whether what is returned is in the files, once, and nothing else; and whether all that is on record can be
    replayed."""

    def __init__(self):
        self._returned = []
        self.n_chunks = 0

    def check(self, chunks, *, interrupted):
        self._returned += map(_outline, chunks)
        self.n_chunks += len(chunks)

    def check_files(self, runner):
        """After the runner's end."""
        filed = [_outline(each) for some in ParquetReader(runner.config.output).iter_episodes() for each in some]
        assert sorted(filed) == sorted(self._returned), set(filed) ^ set(self._returned)
        assert len(set(filed)) == len(filed)
        recording = Recording(runner.config.record_actions)
        for episode in (each for each in recording if each.length):
            fastmarl.replay(recording, episode.number, env=Clock)
        ended = {id_ for id_, _, _, is_done in filed if is_done}
        assert ended == {episode.id_ for episode in recording if episode.is_done}


def _outline(chunk):
    return chunk.id_, chunk.env_t_started, chunk.env_t, chunk.is_done


def make_runner(kind):
    options = {"env": StampedEnv, "num_envs_per_env_runner": 4, "model_config": {"fcnet_hiddens": [4]}}
    if "gym_env_vectorize_mode" not in kind:
        options |= {"gym_env_vectorize_mode": "async", "num_env_workers": 2, "env_worker_start_method": "fork"}
        options["step_timeout_s"] = STEP_TIMEOUT_S
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**options | kind, keep_float64=True, seed=0))
    if "output" not in kind:  # imports and compiles what a call needs
        runner.sample(num_timesteps=9, random_actions=True, force_reset=True)
    return runner


def compile_writers(folder):
    """Compile what writes files: an interrupt while numba loads a function may crash llvmlite."""
    kind = {**IN_PROCESS, "env": Clock, "output": f"{folder}/output", "record_actions": f"{folder}/record"}
    runner = make_runner(kind)
    runner.sample(num_timesteps=80, random_actions=True)
    runner.stop()


def is_sent(sender, timeout):
    """Return true if the sender has reported a signal; each report is read once."""
    ready, _, _ = select.select([sender.stdout], [], [], timeout)
    return bool(ready) and bool(os.read(sender.stdout.fileno(), 1))


def interrupt(runner, witness, sender, rng):
    """Interrupt the runner once, somewhere; then see how it goes on.

    Returns:
        (whether the interrupt has arrived, the slowest call's seconds)
    """
    calls, has_arrived = [], False
    try:
        sender.stdin.write(f"{AT_MOST_S * rng.random()}\n".encode())
        sender.stdin.flush()
        while not is_sent(sender, 0.0):
            # Nothing is between the return and append(), so that no chunks are lost here.
            calls.append(runner.sample(num_timesteps=int(rng.integers(1, 60)), random_actions=True))
    except KeyboardInterrupt:
        has_arrived = True
        is_sent(sender, 10.0)
    except Exception:
        with contextlib.suppress(KeyboardInterrupt):  # which is still to come
            time.sleep(5)
        is_sent(sender, 10.0)
        raise
    for chunks in calls:
        witness.check(chunks, interrupted=False)
    slowest = 0.0
    for call in range(3):
        begun = time.monotonic()
        chunks = runner.sample(num_timesteps=80, random_actions=True)
        slowest = max(slowest, time.monotonic() - begun)
        witness.check(chunks, interrupted=call == 0)
    return has_arrived, slowest


def main(count, seed):
    """Writes what has happened, as JSON."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(seed)
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    report = {"interrupts": 0, "arrived": 0, "slowest_s": 0.0, "chunks": 0, "wrong": []}
    with tempfile.TemporaryDirectory() as folder:
        compile_writers(folder)
        files = [
            {**kind, "env": Clock, "output": f"{folder}/output{i}", "record_actions": f"{folder}/record{i}"}
            for i, kind in enumerate(FILES)
        ]
        kinds = [*((kind, Witness) for kind in KINDS), *((kind, FilesWitness) for kind in files)]
        for number, (kind, make_witness) in enumerate(kinds):
            runner, witness = make_runner(kind), make_witness()
            for _ in range(count // len(kinds) + (number < count % len(kinds))):
                try:
                    has_arrived, slowest = interrupt(runner, witness, sender, rng)
                    report["arrived"] += has_arrived
                    report["slowest_s"] = max(report["slowest_s"], slowest)
                except Exception as error:
                    report["wrong"].append(f"{kind}: {error!r:.2000}")
                    runner.stop()
                    runner, witness = make_runner(kind), make_witness()
                report["interrupts"] += 1
            report["chunks"] += witness.n_chunks
            runner.stop()
            if make_witness is FilesWitness:
                try:
                    witness.check_files(runner)
                except Exception as error:
                    report["wrong"].append(f"{kind}: {error!r:.2000}")
    sender.stdin.close()
    sender.wait()
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
