"""Real interrupts, at random times, of what hands out batches: each arrives, and no batch is wrong or comes twice.

A script, since an interrupt that comes too late would end the tests: `python -m support.sigints_of_batches NAME COUNT
SEED`, with a name of `KINDS`.
"""

import contextlib
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import psutil

import fastmarl
from fastmarl.distributed import BackgroundSampler, EnvRunnerGroup
from fastmarl.errors import RunnerStoppedError
from support.sigints import SENDER, is_sent
from support.stamped_env import N_AGENTS, StampedEnv

MAKER, EPISODE, T, AGENT, LAST_ACTION = range(1, 6)  # columns of the observations
N_ENVS = 2
STUCK_S = 120


class BatchWitness:
    """Looks whether batches that follow each other are what the envs have said, each step once and in order."""

    def __init__(self):
        self._last = {}  # maker -> (episode, env step)
        self.n_batches = 0

    def check(self, batch, *, interrupted):
        """After an interrupt, there may be gaps."""
        columns = batch["default_policy"]
        obs, actions, rewards = (columns[name] for name in ("obs", "actions", "rewards"))
        np.testing.assert_array_equal(rewards, obs[:, T] + 1 + actions)
        for maker in np.unique(obs[:, MAKER]):
            rows = obs[:, MAKER] == maker
            steps = [self._check_agent(obs[rows & own], actions[rows & own]) for own in _each_agent(obs)]
            assert all(each == steps[0] for each in steps)
            self._check_order(int(obs[rows][0, 0]), maker, steps[0], interrupted)
        self.n_batches += 1

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


def _each_agent(obs):
    return [obs[:, AGENT] == agent for agent in range(N_AGENTS)]


def make_config(**options):
    return fastmarl.EnvRunnerConfig(
        env=StampedEnv, num_envs_per_env_runner=N_ENVS, rollout_fragment_length=9, keep_float64=True, seed=0,
        model_config={"fcnet_hiddens": [4]}, **options,
    )  # fmt: skip


class Interrupter:
    """Interrupts this process, from another one."""

    def __init__(self, rng):
        self._rng = rng
        self._process = subprocess.Popen(
            [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.pid = self._process.pid

    def interrupt_soon(self, at_most_s):
        self._process.stdin.write(f"{at_most_s * self._rng.random()}\n".encode())
        self._process.stdin.flush()

    def has_come(self, timeout=0.0):
        return is_sent(self._process, timeout)

    def end(self):
        self._process.stdin.close()
        self._process.wait()


def interrupted(interrupter, at_most_s, use):
    """Use something until an interrupt has come; returns whether it has arrived as KeyboardInterrupt."""
    try:
        interrupter.interrupt_soon(at_most_s)
        while not interrupter.has_come():
            use()
    except KeyboardInterrupt:
        assert interrupter.has_come(10.0)
        return True
    except Exception:
        with contextlib.suppress(KeyboardInterrupt):  # which is still to come
            time.sleep(5)
        interrupter.has_come(10.0)
        raise
    return False


class GroupTrial:
    """One group is interrupted again and again; it goes on."""

    def __init__(self, num_env_runners):
        self._n = num_env_runners
        self.witness = BatchWitness()
        self._group = None

    def run(self, interrupter):
        if self._group is None:
            self._group = EnvRunnerGroup(make_config(), num_env_runners=self._n)
            for _, part in zip(range(4), self._group.sample_ready(), strict=False):  # imports, and compiles
                self.witness.check(part.batch, interrupted=False)
        group, parts = self._group, []
        use = [lambda: self._sample(parts), lambda: self._take(parts), group.set_weights, group.get_state]
        has_arrived = interrupted(interrupter, 0.1 if self._n == 0 else 0.4, lambda: [each() for each in use])
        for part in parts:
            self.witness.check(part.batch, interrupted=True)
        for call in range(3):
            for part in sorted(group.sample(), key=lambda each: each.weights_seq_no):
                self.witness.check(part.batch, interrupted=call == 0)
        return has_arrived

    def _sample(self, parts):
        parts += self._group.sample()

    def _take(self, parts):
        for _, part in zip(range(3), self._group.sample_ready(), strict=False):
            parts.append(part)

    def end(self):
        if self._group is not None:
            self._group.stop()
        self._group = None


class BackgroundTrial:
    """Samplers are interrupted while they start, sample or close; then they are closed, and another one is made."""

    def __init__(self):
        self.witness = BatchWitness()
        self._number = 0

    def run(self, interrupter):
        self._number += 1
        samplers, batches = [], []

        def use():
            if not samplers:
                samplers.append(self._make())
            batches.append(samplers[0].next())
            samplers[0].set_weights()
            if self._number % 3 == 0 and len(batches) % 3 == 0:
                samplers.pop().close()

        if self._number % 3:
            use()
        has_arrived = interrupted(interrupter, 0.3 if self._number % 3 else 1.5, use)
        for batch in batches:
            self.witness.check(batch, interrupted=False)
        if samplers:
            self._check_closed(samplers.pop())
        return has_arrived

    def _make(self):
        return BackgroundSampler(make_config(), start_method="fork", processes=2)

    def _check_closed(self, sampler):
        """If the interrupt came in one of its methods, and not between two."""
        with contextlib.suppress(RunnerStoppedError):
            sampler.next()
        sampler.close()

    def end(self):
        pass


KINDS = {"background": BackgroundTrial, "group": partial(GroupTrial, 0), "ray": partial(GroupTrial, 2)}


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


def n_files():
    return len(os.listdir("/proc/self/fd"))


def main(name, count, seed):
    """Writes what has happened, as JSON."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = set(os.listdir("/dev/shm"))
    interrupter = Interrupter(np.random.default_rng(seed))
    report = {"interrupts": 0, "arrived": 0, "batches": 0, "wrong": []}
    trial, files = KINDS[name](), 0
    for number in range(count):
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        try:
            report["arrived"] += trial.run(interrupter)
            if name == "background":
                report["wrong"] += left_behind(interrupter)
                files = files if number > 2 else n_files()
                assert n_files() <= files
        except Exception as error:
            report["wrong"].append(f"{error!r:.2000}")
            trial.end()
            report["batches"] += trial.witness.n_batches
            trial = KINDS[name]()
        report["interrupts"] += 1
    trial.end()
    report["batches"] += trial.witness.n_batches
    if name == "ray":
        import ray

        ray.shutdown()
    report["wrong"] += left_behind(interrupter)
    report["wrong"] += sorted(each for each in set(os.listdir("/dev/shm")) - before if "fastmarl" in each)
    interrupter.end()
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
