"""Sample for a long time, with envs that fail in all ways, and check that nothing grows.

    python tests/soak.py WAY [SECONDS]

WAY is "in-process" or "workers". Each round samples with a permanent runner, checks every chunk, and creates and ends a
second runner: it is stopped, has its envs re-created, or is left to the garbage collector. Then the resident memory of
this process (and of its longest living worker), descriptors, threads, children and names in /dev/shm are recorded.
After the first third of the time, memory may grow by 5 MB, and the numbers not at all. The exit status is 1 if anything
has grown.
"""

import argparse
import gc
import os
import random
import statistics
import sys
import time
from collections import deque
from dataclasses import astuple, dataclass, fields

import psutil
from support.stamped_env import StampedEnv, Witness

import fastmarl

WAYS = ("in-process", "workers")
MOST_MB = 5.0
KEPT_CHUNKS = 20
REPORTED_EVERY_S = 10.0


class Failing(StampedEnv):
    """The first two envs never fail; the others raise errors, and in workers also crash and hang, at random steps."""

    def __init__(self, config):
        super().__init__(config)
        self.every = {} if self.index < 2 else config["every"]
        self.chance = random.Random()

    def step(self, actions):
        kind = next((kind for kind, steps in self.every.items() if self.chance.random() < 1 / steps), None)
        if kind == "crash":
            os._exit(1)
        if kind == "hang":
            time.sleep(600)
        result = super().step(actions)
        if kind == "raise":
            raise ValueError("as configured")
        return result


def make_runner(way):
    """Four envs; in workers, two for those that fail and two for the others."""
    options = {"num_envs_per_env_runner": 4, "env_config": {"long": 40, "every": {"raise": 150}}}
    if way == "workers":
        options["env_config"]["every"] |= {"crash": 700, "hang": 2500}
        options |= {
            "gym_env_vectorize_mode": "async",
            "num_env_workers": 2,
            "env_worker_start_method": "fork",
            "step_timeout_s": 1.0,
            "worker_num_splits": 2,
        }
    config = fastmarl.EnvRunnerConfig(
        env=Failing,
        restart_failed_sub_environments=True,
        keep_float64=True,
        model_config={"fcnet_hiddens": [8]},
        **options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


@dataclass
class Sample:
    """Resources that this process holds."""

    rss_mb: float
    worker_rss_mb: float
    descriptors: int
    threads: int
    children: int
    dev_shm: int

    @classmethod
    def now(cls):
        gc.collect()
        process = psutil.Process()
        children = [child for child in process.children() if "resource_tracker" not in " ".join(child.cmdline())]
        oldest = min(children, key=lambda child: child.create_time(), default=None)
        return cls(
            rss_mb=process.memory_info().rss / 1e6,
            worker_rss_mb=0.0 if oldest is None else oldest.memory_info().rss / 1e6,
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            children=len(children),
            dev_shm=len(os.listdir("/dev/shm")),
        )

    def __str__(self):
        return "  ".join(f"{field.name} {getattr(self, field.name):g}" for field in fields(self))


def soak(way, seconds):
    """Samples after each round of the last two thirds of the time, and the failures that the envs had."""
    runner, witness, kept, failures = make_runner(way), Witness(), deque(maxlen=KEPT_CHUNKS), 0
    samples, begun, n_rounds, reported = [], time.monotonic(), 0, 0.0
    while (passed := time.monotonic() - begun) < seconds:
        n_rounds += 1
        for n in (60, 200, 340):
            chunks = runner.sample(num_timesteps=n)
            witness.check(chunks, interrupted=False)
            kept.extend(chunks)
        failures += runner.get_metrics()["num_env_failures"]
        end_another(make_runner(way), n_rounds)
        if passed > seconds / 3:
            samples.append(Sample.now())
        if passed > reported + REPORTED_EVERY_S:
            reported = passed
            say(f"{passed:6.0f} s  {n_rounds} rounds  {failures} failures  {Sample.now()}")
    runner.stop()
    return samples, failures


def end_another(runner, number):
    """Sample a little, and end the runner in one of the ways in which they end."""
    runner.sample(num_timesteps=30)
    if number % 3 == 0:
        runner.make_env()
        runner.sample(num_timesteps=30)
    if number % 3 < 2:
        runner.stop()


def grown(samples):
    """Return a line for each resource that has grown."""
    quarter = max(1, len(samples) // 4)
    lines = []
    for field, values in zip(fields(Sample), zip(*map(astuple, samples), strict=True), strict=True):
        first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
        if last - first > (MOST_MB if field.type is float else 0):
            lines.append(f"{field.name}: {first:g} after a third of the time, {last:g} in the end")
    return lines


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("seconds", type=float, nargs="?", default=120.0)
    args = parser.parse_args()
    samples, failures = soak(args.way, args.seconds)
    problems = grown(samples)
    if not failures:
        problems.append("no env has failed: a longer time is needed")
    say("\n".join(f"{args.way}: {problem}" for problem in problems) or f"{args.way}: nothing has grown")
    say(f"first {samples[0]}\nlast  {samples[-1]}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
