"""Real interrupts at random times, of runners and of what hands out batches: each arrives, and what is used afterwards
goes on, with nothing wrong, twice or left behind.

A script, since an interrupt that comes too late would end the tests: `python -m support.sigints NAME COUNT SEED`, with
a name of `TRIALS`.
"""

import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial

import numpy as np
import psutil

import fastmarl
from fastmarl.distributed import BackgroundSampler, EnvRunnerGroup
from fastmarl.errors import RunnerStoppedError
from fastmarl.offline import ParquetReader
from fastmarl.replays import Recording
from support.levels import Levels
from support.stamped_env import N_AGENTS, StampedEnv, Witness

STEP_TIMEOUT_S = 20
STUCK_S = 120
SENDER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(float(line))
    os.kill(os.getppid(), signal.SIGINT)
    print(end=".", flush=True)
"""


class Interrupter:
    """Interrupts this process, from another one."""

    def __init__(self, rng):
        self._rng = rng
        self._process = subprocess.Popen(
            [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.pid = self._process.pid

    def interrupt_while(self, use, at_most_s):
        """Use something until an interrupt has come; returns whether it has arrived as KeyboardInterrupt."""
        try:
            self._process.stdin.write(f"{at_most_s * self._rng.random()}\n".encode())
            self._process.stdin.flush()
            while not self._has_come():
                use()
        except KeyboardInterrupt:
            assert self._has_come(10.0)
            return True
        except Exception:
            with contextlib.suppress(KeyboardInterrupt):  # which is still to come
                time.sleep(5)
            self._has_come(10.0)
            raise
        return False

    def _has_come(self, timeout=0.0):
        """Return true if a signal was sent; each report of one is read once."""
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        return bool(ready) and bool(os.read(self._process.stdout.fileno(), 1))

    def end(self):
        self._process.stdin.close()
        self._process.wait()


# Runners.

IN_PROCESS = {"gym_env_vectorize_mode": "sync"}
KINDS = (
    IN_PROCESS,
    {},
    {"worker_num_splits": 2, "env_config": {"long": 3}},
    {"worker_num_splits": 2, "env_batch_size": 1, "env_config": {"long": 5}},
    {"restart_failed_sub_environments": True, "env_config": {"crash": 60, "long": 7}, "max_restarts": 9},
)


def make_runner(kind):
    options = {"env": StampedEnv, "num_envs_per_env_runner": 4, "model_config": {"fcnet_hiddens": [4]}}
    if "gym_env_vectorize_mode" not in kind:
        options |= {"gym_env_vectorize_mode": "async", "num_env_workers": 2, "env_worker_start_method": "fork"}
        options["step_timeout_s"] = STEP_TIMEOUT_S
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**options | kind, keep_float64=True, seed=0))
    if "output" not in kind:  # imports and compiles what a call needs
        runner.sample(num_timesteps=9, random_actions=True, force_reset=True)
    return runner


class RunnerTrial:
    """A runner is interrupted again and again; it samples on."""

    make_witness = Witness

    def __init__(self, kind, rng):
        self._rng, self.witness = rng, self.make_witness()
        self._runner = make_runner(kind)

    def run(self, interrupter):
        calls = []

        def use():
            # Nothing is between the return and append(), so that no chunks are lost here.
            calls.append(self._runner.sample(num_timesteps=int(self._rng.integers(1, 60)), random_actions=True))

        has_arrived = interrupter.interrupt_while(use, 0.05)
        for chunks in calls:
            self.witness.check(chunks, interrupted=False)
        for call in range(3):
            begun = time.monotonic()
            chunks = self._runner.sample(num_timesteps=80, random_actions=True)
            assert time.monotonic() - begun < STEP_TIMEOUT_S
            self.witness.check(chunks, interrupted=call == 0)
        return has_arrived

    def end(self):
        self._runner.stop()


class FilesWitness:
    """Looks whether what is returned is in the files, once, and nothing else; and whether all that is on record can be
    replayed."""

    def __init__(self):
        self._returned = []
        self.n_checked = 0

    def check(self, chunks, *, interrupted):
        self._returned += map(_outline, chunks)
        self.n_checked += len(chunks)

    def check_files(self, config):
        """After the runner's end."""
        filed = [_outline(each) for some in ParquetReader(config.output).iter_episodes() for each in some]
        assert sorted(filed) == sorted(self._returned), set(filed) ^ set(self._returned)
        assert len(set(filed)) == len(filed)
        recording = Recording(config.record_actions)
        for episode in (each for each in recording if each.length):
            fastmarl.replay(recording, episode.number, env=Levels)
        ended = {id_ for id_, _, _, is_done in filed if is_done}
        assert ended == {episode.id_ for episode in recording if episode.is_done}


def _outline(chunk):
    return chunk.id_, chunk.env_t_started, chunk.env_t, chunk.is_done


class FilesTrial(RunnerTrial):
    """A runner with `output` and a record of actions is interrupted."""

    make_witness = FilesWitness

    def __init__(self, kind, rng):
        self._folder = tempfile.TemporaryDirectory()
        files = {"output": f"{self._folder.name}/output", "record_actions": f"{self._folder.name}/record"}
        super().__init__({**kind, "env": Levels, **files}, rng)

    def end(self):
        super().end()
        with self._folder:
            self.witness.check_files(self._runner.config)


def compile_writers():
    """Compile what writes files: an interrupt while numba loads a function may crash llvmlite."""
    trial = FilesTrial(IN_PROCESS, None)
    trial.witness.check(trial._runner.sample(num_timesteps=80, random_actions=True), interrupted=False)
    trial.end()


# Batches.

MAKER, EPISODE, T, AGENT, LAST_ACTION = range(1, 6)  # columns of the observations


class BatchWitness:
    """Looks whether batches that follow each other are what the envs have said, each step once and in order."""

    def __init__(self):
        self._last = {}  # maker -> (episode, env step)
        self.n_checked = 0

    def check(self, batch, *, interrupted):
        """After an interrupt, there may be gaps."""
        columns = batch["default_policy"]
        obs, actions, rewards = (columns[name] for name in ("obs", "actions", "rewards"))
        np.testing.assert_array_equal(rewards, obs[:, T] + 1 + actions)
        for maker in np.unique(obs[:, MAKER]):
            rows = obs[:, MAKER] == maker
            of_agents = [rows & (obs[:, AGENT] == agent) for agent in range(N_AGENTS)]
            steps = [self._check_agent(obs[own], actions[own]) for own in of_agents]
            assert all(each == steps[0] for each in steps)
            self._check_order(int(obs[rows][0, 0]), maker, steps[0], interrupted)
        self.n_checked += 1

    def _check_agent(self, obs, actions):
        """(episode, env step) of an agent's rows."""
        follows = (np.diff(obs[:, T]) == 1) & (np.diff(obs[:, EPISODE]) == 0)
        np.testing.assert_array_equal(obs[1:, LAST_ACTION][follows], actions[:-1][follows])
        return [(int(episode), int(t)) for episode, t in obs[:, [EPISODE, T]]]

    def _check_order(self, env, maker, steps, interrupted):
        for step in steps:
            last = self._last.get(maker)
            if last is None:
                assert interrupted or step == (1, 0)
            else:
                episode, t = last
                is_over = t + 1 == 7 + 5 * (env + episode) % 11
                want = (episode + 1, 0) if is_over else (episode, t + 1)
                assert step > last if interrupted else step == want, f"env {env}: {step} after {last}"
            self._last[maker] = step


def make_config():
    return fastmarl.EnvRunnerConfig(
        env=StampedEnv, num_envs_per_env_runner=2, rollout_fragment_length=9, keep_float64=True, seed=0,
        model_config={"fcnet_hiddens": [4]},
    )  # fmt: skip


class GroupTrial:
    """One group is interrupted again and again; it goes on."""

    def __init__(self, num_env_runners, rng):
        self._at_most_s = 0.4 if num_env_runners else 0.1
        self.witness = BatchWitness()
        self._group = EnvRunnerGroup(make_config(), num_env_runners=num_env_runners)
        for _, part in zip(range(4), self._group.sample_ready(), strict=False):  # imports, and compiles
            self.witness.check(part.batch, interrupted=False)

    def run(self, interrupter):
        group, parts = self._group, []

        def use():
            parts.extend(group.sample())
            parts.extend(part for _, part in zip(range(3), group.sample_ready(), strict=False))
            group.set_weights()
            group.get_state()

        has_arrived = interrupter.interrupt_while(use, self._at_most_s)
        for part in parts:
            self.witness.check(part.batch, interrupted=True)
        for call in range(3):
            for part in sorted(group.sample(), key=lambda each: each.weights_seq_no):
                self.witness.check(part.batch, interrupted=call == 0)
        return has_arrived

    def end(self):
        self._group.stop()


class BackgroundTrial:
    """Samplers are interrupted while they start, sample or close; then they are closed, and another one is made."""

    def __init__(self, rng):
        self.witness = BatchWitness()
        self._number = self._n_files = 0

    def run(self, interrupter):
        self._number += 1
        samplers, batches = [], []

        def use():
            if not samplers:
                samplers.append(BackgroundSampler(make_config(), start_method="fork", processes=2))
            batches.append(samplers[0].next())
            samplers[0].set_weights()
            if self._number % 3 == 0 and len(batches) % 3 == 0:
                samplers.pop().close()

        if self._number % 3:
            use()
        has_arrived = interrupter.interrupt_while(use, 0.3 if self._number % 3 else 1.5)
        for batch in batches:
            self.witness.check(batch, interrupted=False)
        if samplers:
            with contextlib.suppress(RunnerStoppedError):  # if the interrupt came in one of its methods
                samplers[0].next()
            samplers.pop().close()
        assert not left_behind(interrupter)
        n_files = len(os.listdir("/proc/self/fd"))
        if self._number <= 3:
            self._n_files = n_files
        assert n_files <= self._n_files
        return has_arrived

    def end(self):
        pass


def left_behind(interrupter):
    """Processes that should have ended."""
    gc.collect()
    ends_at = time.monotonic() + 10
    while True:
        children = [each for each in psutil.Process().children(recursive=True) if each.pid != interrupter.pid]
        left = [each for each in children if not _is_of_python(each) and each.status() != psutil.STATUS_ZOMBIE]
        if not left or time.monotonic() > ends_at:
            return [f"left: {each}" for each in left]
        time.sleep(0.05)


def _is_of_python(process):
    try:
        return "resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return True


TRIALS = {
    "runner": [*(partial(RunnerTrial, kind) for kind in KINDS), *(partial(FilesTrial, kind) for kind in KINDS[:2])],
    "background": [BackgroundTrial],
    "group": [partial(GroupTrial, 0)],
    "ray": [partial(GroupTrial, 2)],
}


def main(name, count, seed):
    """Writes what has happened, as JSON."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = set(os.listdir("/dev/shm"))
    rng = np.random.default_rng(seed)
    interrupter = Interrupter(rng)
    report = {"interrupts": 0, "arrived": 0, "checked": 0, "wrong": []}
    if name == "runner":
        compile_writers()

    def end(trial):
        faulthandler.cancel_dump_traceback_later()
        report["checked"] += trial.witness.n_checked
        try:
            trial.end()
        except Exception as error:
            report["wrong"].append(f"at the end: {error!r:.2000}")

    for number, make_trial in enumerate(TRIALS[name]):
        trial = make_trial(rng)
        for _ in range(count // len(TRIALS[name]) + (number < count % len(TRIALS[name]))):
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            try:
                report["arrived"] += trial.run(interrupter)
            except Exception as error:
                report["wrong"].append(f"{make_trial}: {error!r:.2000}")
                end(trial)
                trial = make_trial(rng)
            report["interrupts"] += 1
        end(trial)
    if name == "ray":
        import ray

        ray.shutdown()
    report["wrong"] += left_behind(interrupter)
    report["wrong"] += sorted(each for each in set(os.listdir("/dev/shm")) - before if "fastmarl" in each)
    interrupter.end()
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
