"""Compare a GPU with the CPU: 4,096 compiled simple_spreads of 8 agents, two nets of 256-256.

    python benchmarks/bench_gpu.py

First, the parts of a tick are timed alone, each until the device has finished. Then follows a bare loop: compiled code
steps two halves of the envs, their observations go to the device, and actions come back. With double buffering, one
half is stepped while the device works for the other. Last are whole runners, which also record, and their stages.
Without a GPU only the CPU is measured, with fewer envs, as a test of this script.
"""

import argparse
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.core.nets.graph_device import CudaGraphs
from fastmarl.core.nets.graphs import GraphCall, TickGraphs
from fastmarl.core.nets.transfer import make_transfer
from fastmarl.distributions import Categorical
from fastmarl.envs.simple_spread import SimpleSpread
from fastmarl.modules import DefaultRLModule

AGENTS = 8
HIDDENS = (256, 256)
EPISODE = 25  # steps
RUNNERS = ({"cuda_graphs": False}, {}, {"worker_num_splits": 2}, {"inference_dtype": "bfloat16"})


class Row(NamedTuple):
    """One figure; `busy` is the share of time during which the GPU ran a kernel or a copy."""

    name: str
    ms_per_tick: float
    busy: float | None = None


class Uncaptured(CudaGraphs):
    """Launches operations one by one; otherwise it behaves like CUDA graphs."""

    def capture(self, work):
        return work


class EagerCalls:
    """Replaces CUDA graphs on the CPU, where operations are executed at once."""

    device = torch.device("cpu")

    def warm_up(self, work):
        return work()

    def capture(self, work):
        return work

    def mark(self):
        return self

    def synchronize(self):
        pass


class Net:
    """One of the two modules; it acts for half of the agents."""

    launched = None

    def __init__(self, module_id, module, generator):
        self.module_id, self.module, self.generator = module_id, module, generator

    def on_device(self, tensors, *, explore):
        outputs = self.module.forward_exploration({"obs": tensors[0]})
        actions, logp = Categorical.sample_and_logp(outputs["action_dist_inputs"], self.generator)
        return {**outputs, "actions": actions, "action_logp": logp}

    def refuse_capture(self, reason):
        raise RuntimeError(reason)


class Half:
    """Half of the envs."""

    def __init__(self, num_envs, nets, seed):
        self.env, self.nets = SimpleSpread(num_envs, N=AGENTS, max_cycles=10**9), nets
        self.arrays = self.env.new_arrays()
        self.env.reset(np.arange(num_envs), self.arrays, seeds=[seed + i for i in range(num_envs)])
        ((self.group, self.values),) = self.arrays.groups.items()
        self.actions = np.zeros((num_envs, AGENTS), np.int64)

    def observations(self):
        """Return the observations of each net's agents."""
        parts = np.split(self.values.obs, len(self.nets), axis=1)
        return [np.ascontiguousarray(part).reshape(-1, part.shape[-1]) for part in parts]

    def launch(self, ticks):
        calls = [GraphCall(net, [obs]) for net, obs in zip(self.nets, self.observations(), strict=True)]
        self.launched = ticks.launch(calls, explore=True)

    def step(self):
        """Step the envs with the actions that were launched."""
        parts = [self.launched.outputs(net)["actions"] for net in self.nets]
        self.actions[:] = np.concatenate([part.reshape(len(self.actions), -1) for part in parts], 1)
        self.step_env()

    def step_env(self):
        self.values.rewards[:] = 0
        self.env.step({self.group: self.actions}, self.arrays)


def loop(halves, ticks, n, *, buffered):
    """Step every env `n` times."""
    if buffered:
        for half in halves:
            half.launch(ticks)
    for i in range(n):
        for half in halves:
            if not buffered:
                half.launch(ticks)
            half.step()
            if buffered and i < n - 1:
                half.launch(ticks)


def busy_share(work: Callable[[], object], device: torch.device) -> float | None:
    """Return the share of time during which the GPU is busy, by torch's profiler; None on the CPU."""
    if device.type != "cuda":
        return None
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profile:
        begun = perf_counter()
        work()
        seconds = perf_counter() - begun
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / seconds


def make_capture(device, generator, *, captured=True):
    if device.type != "cuda":
        return EagerCalls()
    return (CudaGraphs if captured else Uncaptured)(device, generator)


def make_nets(device, generator):
    probe = SimpleSpread(1, N=AGENTS)
    spaces = probe.observation_spaces["agent_0"], probe.action_spaces["agent_0"]
    config = {"fcnet_hiddens": HIDDENS}
    return [Net(name, DefaultRLModule(*spaces, model_config=config).to(device).eval(), generator) for name in "ab"]


def check_outputs(nets, half, ticks):
    """Check that logits and values equal those of the CPU, and that each launch draws new actions."""
    drawn = set()
    for _ in range(3):
        half.launch(ticks)
        drawn.add(b"".join(half.launched.outputs(net)["actions"].tobytes() for net in nets))
    assert len(drawn) == 3, "random numbers are drawn twice"
    for net, obs in zip(nets, half.observations(), strict=True):
        alone = DefaultRLModule(
            net.module.observation_space, net.module.action_space, model_config=net.module.model_config
        )
        alone.set_state(net.module.get_state())
        with torch.no_grad():
            expected = alone.forward_exploration({"obs": torch.from_numpy(obs)})
        outputs = half.launched.outputs(net)
        for key, tensor in expected.items():
            np.testing.assert_allclose(outputs[key], tensor.numpy(), rtol=1e-3, atol=1e-4, err_msg=key)


@torch.no_grad()
def measure_parts(device, num_envs, n):
    """Yield the times of the parts of a tick of all envs, each alone."""
    generator = torch.Generator(device).manual_seed(0)
    capture, transfer = make_capture(device, generator), make_transfer(device)
    nets = make_nets(device, generator)
    half = Half(num_envs, nets, 0)
    arrays = half.observations()
    inputs, outputs, drawn = transfer.to_device(arrays), {}, {}

    def forward():
        for net, obs in zip(nets, inputs, strict=True):
            for key, tensor in net.module.forward_exploration({"obs": obs}).items():
                outputs[net.module_id, key] = tensor

    def draw():
        for net in nets:
            logits = outputs[net.module_id, "action_dist_inputs"]
            drawn[net.module_id, "actions"], drawn[net.module_id, "logp"] = Categorical.sample_and_logp(
                logits, generator
            )

    replays, seconds = {}, 0.0
    for work in (forward, draw):
        capture.warm_up(work)
        begun = perf_counter()
        replays[work] = capture.capture(work)
        seconds += perf_counter() - begun
    if device.type == "cuda":
        yield Row("capture of a new batch size, once", 1e3 * seconds)
    parts = {
        "transfer in": lambda: transfer.to_device(arrays),
        "forward": replays[forward],
        "draw": replays[draw],
        "transfer out": lambda: transfer.to_host(outputs | drawn),
        "environments": half.step_env,
    }
    for name, work in parts.items():
        yield Row(name, median_ms(work, device, n))


def median_ms(work: Callable[[], object], device: torch.device, n: int) -> float:
    samples = []
    for _ in range(n):
        begun = perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        samples.append(perf_counter() - begun)
    return 1e3 * median(samples)


def measure_loop(device, num_envs, n, *, captured, buffered):
    """Yield one row, the time of the bare loop."""
    generator = torch.Generator(device).manual_seed(0)
    ticks = TickGraphs(make_capture(device, generator, captured=captured))
    nets = make_nets(device, generator)
    halves = [Half(num_envs // 2, nets, seed) for seed in (0, num_envs)]
    check_outputs(nets, halves[0], ticks)
    loop(halves, ticks, 3, buffered=buffered)
    name = f"bare loop, {'CUDA graphs' if captured else 'no graphs'}, {'double' if buffered else 'single'} buffering"
    work = partial(loop, halves, ticks, n, buffered=buffered)
    yield Row(name, ms_per_tick(work, n), busy_share(work, device))


def ms_per_tick(work: Callable[[], object], n: int) -> float:
    """Return the mean time of `n` ticks, which `work` executes."""
    begun = perf_counter()
    work()
    return 1e3 * (perf_counter() - begun) / n


def measure_runner(device, num_envs, n, options):
    """Yield the times of a whole runner and of the stages of its ticks."""
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(
            env="fastmarl.simple_spread",
            env_config={"N": AGENTS, "max_cycles": EPISODE},
            num_envs_per_env_runner=num_envs,
            policies=["a", "b"],
            policy_mapping_fn=lambda agent, episode: "ab"[int(agent.split("_")[1]) % 2],
            model_config={"fcnet_hiddens": list(HIDDENS)},
            device=str(device),
            seed=0,
            **options,
        )
    )
    runner.sample(num_timesteps=num_envs * (EPISODE + 5))  # also compiles what the end of an episode calls
    runner.get_metrics()
    sample = partial(runner.sample, num_timesteps=num_envs * n)
    ms, stages = ms_per_tick(sample, n), runner.get_metrics()["stage_time_ms"]
    name = f"runner, {', '.join(f'{key}={value}' for key, value in options.items()) or 'default options'}"
    print(f"  {name}: {', '.join(sorted(set(runner.inference_backends.values())))}", flush=True)
    yield Row(name, ms, busy_share(sample, device))
    for stage, ms in stages.items() if not options else ():
        yield Row(f"- its stage {stage}", ms)
    runner.stop()


def measurements(device: torch.device, num_envs: int, n: int) -> Iterator[Callable[[], Iterator[Row]]]:
    """Yield functions that measure rows; the CPU has no variants of GPU features."""
    has_variants = device.type == "cuda"
    yield partial(measure_parts, device, num_envs, n)
    for captured, buffered in product((False, True), repeat=2) if has_variants else [(False, False)]:
        yield partial(measure_loop, device, num_envs, n, captured=captured, buffered=buffered)
    for options in RUNNERS if has_variants else ({},):
        yield partial(measure_runner, device, num_envs, n, options)


def table(columns: dict[str, dict[str, Row]], num_envs: int) -> Iterator[str]:
    """Yield the lines of a Markdown table: a row for each name, two columns for each device."""
    heads = [head for device in columns for head in (f"{device}: ms per tick", f"{device}: agent steps/s")]
    yield f"| {num_envs:,} envs x {AGENTS} agents | {' | '.join(heads)} | GPU busy |"
    yield "|---|" + "---|" * (len(heads) + 1)
    for name in dict.fromkeys(name for rows in columns.values() for name in rows):
        found = [rows.get(name) for rows in columns.values()]
        is_whole = name.startswith(("bare loop", "runner"))
        cells = [cell for row in found for cell in _figures(row, num_envs if is_whole else 0)]
        busy = [f"{row.busy:.0%}" for row in found if row is not None and row.busy is not None]
        yield f"| {name} | {' | '.join(cells)} | {''.join(busy)} |"


def _figures(row: Row | None, num_envs: int) -> tuple[str, str]:
    """Return the milliseconds, and the agent steps per second of `num_envs` envs unless that is 0."""
    if row is None:
        return "", ""
    return f"{row.ms_per_tick:.3f}", f"{1e3 * num_envs * AGENTS / row.ms_per_tick:,.0f}" if num_envs else ""


def report(devices: list[torch.device], num_envs: int, n: int) -> int:
    """Measure and print `n` ticks of each kind; returns the number of failed measurements."""
    columns: dict[str, dict[str, Row]] = {str(device): {} for device in devices}
    n_failed = 0
    for device in devices:
        for measure in measurements(device, num_envs, n):
            try:
                for row in measure():
                    columns[str(device)][row.name] = row
                    print(f"{device}: {row.name}: {row.ms_per_tick:.3f} ms", flush=True)
            except Exception:  # a machine with a GPU may be available only for minutes, so continue
                traceback.print_exc(file=sys.stdout)
                n_failed += 1
    print(*table(columns, num_envs), sep="\n")
    return n_failed


@pytest.mark.benchmark(group="gpu")
def bench_small_on_cpu(benchmark, capsys):
    assert benchmark.pedantic(lambda: report([torch.device("cpu")], 4, 3), rounds=1) == 0
    head, _, *rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) == 5 + 1 + 1 + 8
    assert {row.count("|") for row in rows} == {head.count("|")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    has_gpu = torch.cuda.is_available()
    parser.add_argument("--envs", type=int, default=4096 if has_gpu else 64)
    parser.add_argument("--ticks", type=int, default=50)
    args = parser.parse_args()
    gpu = torch.cuda.get_device_name() if has_gpu else "NO GPU: torch finds no CUDA device here"
    print(f"{gpu}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    devices = [torch.device(name) for name in (["cuda"] if has_gpu else []) + ["cpu"]]
    if n_failed := report(devices, args.envs, args.ticks):
        sys.exit(f"{n_failed} measurements failed")


if __name__ == "__main__":
    main()
