"""Compare runners in Ray actors with one in this process, and measure the overhead of a group.

python benchmarks/bench_distributed.py    (on two free cores, 5 minutes; --parts chooses)

Samplers take turns, so that figures to compare are measured within seconds. Ray gives its processes nice 15: on a busy
machine they get little CPU time, and ratios of times mean nothing. Ratios of CPU times show the most that two free
cores would give.
"""

import argparse
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import psutil
import ray
import torch

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.distributed import EnvRunnerGroup
from fastmarl.distributed.actors import Actors
from fastmarl.distributed.calls import Call, CallsInFlight
from fastmarl.distributed.host import HostReady, HostReport
from fastmarl.distributed.in_process import Put
from fastmarl.distributed.parts import owned
from fastmarl.learning import make_value_fn
from fastmarl.runner.loop.runner_metrics import Counts, Increment

ENVS = {"mpe2.simple_spread_v3": 32, "fastmarl.simple_spread": 128}
STEPS_OF_CALL = {"mpe2.simple_spread_v3": 6_400, "fastmarl.simple_spread": 64_000}  # takes about a second
NAMES = ("obs", "actions", "action_logp", "advantages", "value_targets")
N_FAKES = 10_000
TRIP_ENV_STEPS = 12_800  # of three agent steps each
PARTS = ("speed", "trip", "calls", "kill", "fakes")


def make_config(env: str, num_envs: int | None = None) -> fastmarl.EnvRunnerConfig:
    return fastmarl.EnvRunnerConfig(
        env=env,
        num_envs_per_env_runner=num_envs or ENVS[env],
        rollout_fragment_length=25,
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        seed=0,
        num_threads=1,
    )


def columns_and_gae(episodes: Any, module: Any) -> Any:
    batch = columns(episodes, outputs=["action_logp", "vf_preds"])["default_policy"]
    add_gae(batch, gamma=0.95, lambda_=0.95, value_fn=make_value_fn(module["default_policy"]))
    return {name: batch[name] for name in NAMES}


def seconds_of(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def show(name: str, values: Sequence[float], unit: str = "") -> None:
    print(f"  {name:52} {median(values):9.4g} ({min(values):.4g} to {max(values):.4g}) {unit}", flush=True)


def timed(work: Callable[[], Any], processes: Sequence[psutil.Process]) -> tuple[float, float]:
    """Return (seconds, CPU seconds of these processes)."""
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    seconds = seconds_of(work)
    return seconds, sum(sum(process.cpu_times()[:2]) for process in processes) - before


def speed(env: str, n_rounds: int) -> None:
    """Print the agent steps per second of groups, relative to one runner in this process; a thread for each."""
    config, steps = make_config(env), STEPS_OF_CALL[env]
    print(
        f"{env}, {ENVS[env]} environments, calls of {steps:,} env steps, columns and GAE made where they were sampled"
    )
    ratios: dict[str, list[float]] = {}
    with (
        fastmarl.MultiAgentEnvRunner(config) as local,
        EnvRunnerGroup(config, num_env_runners=1, make_batch=columns_and_gae) as one,
        EnvRunnerGroup(config, num_env_runners=2, make_batch=columns_and_gae) as two,
    ):
        own = [psutil.Process()]
        of_one = [psutil.Process(pid) for pid in one.foreach(pid_of).values()]
        of_two = [psutil.Process(pid) for pid in two.foreach(pid_of).values()]

        def here() -> None:
            columns_and_gae(local.sample(num_timesteps=steps), local.module)

        for turn in range(n_rounds + 1):
            first, cpu_first = timed(here, own)
            single, cpu_single = timed(lambda: one.sample(num_timesteps=steps), of_one)
            double, cpu_double = timed(lambda: two.sample(num_timesteps=steps), of_two)
            last, cpu_last = timed(here, own)
            if not turn:  # warms up
                continue
            alone, cpu = (first + last) / 2, (cpu_first + cpu_last) / 2
            found = {
                "group of one": alone / single,
                "two actors": 2 * alone / double,
                "group of one, by CPU time of an agent step": cpu / cpu_single,
                "two actors, by CPU time of an agent step": 2 * cpu / (cpu_double / 2),
                "cores that two actors got": cpu_double / double,
                "agent steps/s here": 3 * steps / alone,
            }
            for name, value in found.items():
                ratios.setdefault(name, []).append(value)
    for name, values in ratios.items():
        show(name, values)


def pid_of(runner: Any) -> int:
    return os.getpid()


def keep_columns(runner: Any) -> None:
    runner.kept = columns_and_gae(runner.sample(num_timesteps=TRIP_ENV_STEPS), runner.module)


def kept_columns(runner: Any) -> Any:
    return runner.kept


def trip(n_rounds: int) -> None:
    """Print the cost of moving columns from a runner to this process."""
    print(f"trip of the columns of {3 * TRIP_ENV_STEPS:,} agent steps of fastmarl.simple_spread")
    with EnvRunnerGroup(make_config("fastmarl.simple_spread"), num_env_runners=1) as group:
        group.foreach(keep_columns)
        (batch,) = group.foreach(kept_columns).values()
        n_rows = len(batch["actions"])
        size = sum(column.nbytes for column in batch.values())
        extra, cpu = [], []
        for _ in range(10 * n_rounds):
            nothing = seconds_of(lambda: group.foreach(pid_of))
            begun = time.process_time()
            whole = seconds_of(lambda: [owned(each) for each in group.foreach(kept_columns).values()])
            cpu.append(1e6 * (time.process_time() - begun) / n_rows)
            extra.append(1e6 * (whole - nothing) / n_rows)
    print(f"  {size / n_rows:.0f} bytes an agent step")
    show("beyond a call that returns a number", extra, "µs an agent step")
    show("CPU time of this process, call and copy included", cpu, "µs an agent step")


def calls(n_rounds: int) -> None:
    """Print the CPU time that this process needs to call an actor."""
    print("one call of one actor, CPU time of this process")
    with EnvRunnerGroup(make_config("fastmarl.simple_spread", 1), num_env_runners=1) as group:
        weights = group.get_weights()
        bare, weighed, put, latency = [], [], [], []
        for _ in range(30 * n_rounds):
            begun = time.process_time()
            latency.append(1e3 * seconds_of(lambda: group.foreach(pid_of)))
            bare.append(1e3 * (time.process_time() - begun))
            begun = time.process_time()
            group.set_weights(weights)
            middle = time.process_time()
            group.foreach(pid_of)
            put.append(1e3 * (middle - begun))
            weighed.append(1e3 * (time.process_time() - middle))
    size = sum(array.nbytes for arrays in weights.values() for array in arrays.values())
    show("a call that returns a number", bare, "ms")
    show("the same with new weights", weighed, "ms")
    show(f"set_weights(), {size / 1e3:.0f} kB", put, "ms")
    show("time until the number is there", latency, "ms")


def kill(n_rounds: int) -> None:
    """Kill one of two sampling runners and print the recovery times, beside the start of a group of one."""
    print("a runner of two is killed while both sample (seconds)")
    start, known, made, back = [], [], [], []
    config = make_config("fastmarl.simple_spread", 32)
    with EnvRunnerGroup(config, num_env_runners=2, max_restarts=-1) as group:
        for _ in range(n_rounds):
            start.append(seconds_of(lambda: EnvRunnerGroup(config, num_env_runners=1).stop()))
            stream, victim = group.sample_ready(num_timesteps=3_200), group._fleet.runners[0]
            next(stream)
            incarnation = victim.incarnation
            os.kill(group.foreach(pid_of)[0], signal.SIGKILL)
            begun = time.perf_counter()
            while victim.incarnation == incarnation:
                next(stream)
            known.append(time.perf_counter() - begun)
            while not victim.is_ready:
                next(stream)
            made.append(time.perf_counter() - begun - known[-1])
            while next(stream).runner_index:
                pass
            back.append(time.perf_counter() - begun)
    show("a group of one, made and stopped", start)
    show("until the group knows", known)
    show("from there until the new runner is made", made)
    show("until the new runner's first part, in all", back)


class Canned(Actors):
    """A transport whose actors have finished every call at once."""

    def __init__(self, module: Any):
        self._start = HostReady(0, "here", module, True)
        counts = Counts(calls=1, ticks=1, env_steps=1, agent_steps=Counter(a=1), module_steps=Counter(m=1))
        self._report = HostReport({"obs": np.zeros(1)}, 0, Increment(counts, {}, Counter(), [], []), {})

    def start(self) -> Any:
        return self

    def call(self, handle: Any, method: str, seq_no: int, *args: Any) -> Any:
        return Put(self._start if method == "start" else self._report)

    def put(self, value: Any) -> Any:
        return Put(value)

    def wait(self, references: Sequence[Any], num_returns: int, timeout_s: float) -> Sequence[Any]:
        return references[:num_returns]

    def is_answered(self, reference: Any) -> bool:
        return True

    def get(self, reference: Any) -> Any:
        return reference.value

    def kill(self, handle: Any) -> None:
        pass


class CannedGroup(EnvRunnerGroup):
    def _make_actors(self, *args: Any) -> Any:
        with fastmarl.MultiAgentEnvRunner(make_config("fastmarl.cart_pole", 1)) as runner:
            return Canned(runner.module)


def fakes(n_rounds: int) -> None:
    """Print the cost of the bookkeeping for many runners, without Ray."""
    print(f"{N_FAKES:,} runners without Ray, CPU time of this process")
    of_references, of_group = [], []
    with CannedGroup(make_config("fastmarl.cart_pole", 1), num_env_runners=N_FAKES) as group:
        stream = group.sample_ready(in_flight=1)
        next(stream)  # calls all of them for the first time
        for _ in range(n_rounds):
            begun = time.process_time()
            in_flight = CallsInFlight(lambda references, n, timeout_s: references[:n])
            for number in range(N_FAKES):
                in_flight.add(Call(number, number, "sample", 1.0, object()))
            for call in in_flight.ready(1.0):
                in_flight.remove(call)
            of_references.append(time.process_time() - begun)
            begun = time.process_time()
            for _ in range(N_FAKES):
                next(stream)
            of_group.append(time.process_time() - begun)
    show("references added, found ready, removed", of_references, "s")
    show("a part of each handed out, and the next call made", of_group, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=list(ENVS))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if set(args.parts) - {"fakes"}:
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    if "speed" in args.parts:
        for env in args.envs:
            speed(env, args.rounds)
    if "trip" in args.parts:
        trip(args.rounds)
    if "calls" in args.parts:
        calls(args.rounds)
    if "kill" in args.parts:
        kill(max(1, args.rounds // 5))
    if "fakes" in args.parts:
        fakes(args.rounds)


if __name__ == "__main__":
    main()
