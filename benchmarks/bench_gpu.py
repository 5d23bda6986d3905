"""What CUDA graphs and double buffering bring: 4,096 simple_spreads of 8 agents, two nets of 256-256, one GPU.

    python benchmarks/bench_gpu.py --device cuda

The first four rows are a bare loop: two halves of the envs are stepped by compiled code, their observations go to the
device, actions come back. With double buffering one half is stepped while the device works for the other. Below are
whole runners, which also record. Without a GPU the same runs on the CPU, with fewer envs, to see that it works.
"""

import argparse
from collections.abc import Callable
from time import perf_counter

import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.core.inference.backends.graph_device import CudaGraphs
from fastmarl.core.inference.backends.graphs import GraphCall, TickGraphs
from fastmarl.distributions import Categorical
from fastmarl.envs.simple_spread import SimpleSpread
from fastmarl.modules import DefaultRLModule

AGENTS = 8
HIDDENS = (256, 256)


class Uncaptured(CudaGraphs):
    """Operations are launched one by one; all else is as with CUDA graphs."""

    def capture(self, work):
        return work


class EagerCalls:
    """In place of CUDA graphs on the CPU, where work is done at once."""

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
    """One of the two modules, which acts for half of the agents."""

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
        """Of each net's agents."""
        parts = np.split(self.values.obs, len(self.nets), axis=1)
        return [np.ascontiguousarray(part).reshape(-1, part.shape[-1]) for part in parts]

    def launch(self, ticks):
        calls = [GraphCall(net, [obs]) for net, obs in zip(self.nets, self.observations(), strict=True)]
        self.launched = ticks.launch(calls, explore=True)

    def step(self):
        """With the actions that were launched."""
        parts = [self.launched.outputs(net)["actions"] for net in self.nets]
        self.actions[:] = np.concatenate([part.reshape(len(self.actions), -1) for part in parts], 1)
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


def busy_share(work: Callable[[], None], device: torch.device) -> float:
    """The share of time in which the GPU ran a kernel or a copy, by torch's profiler; 0 on the CPU."""
    if device.type != "cuda":
        return 0.0
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profile:
        begun = perf_counter()
        work()
        seconds = perf_counter() - begun
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / seconds


def check_equal(nets, halves, ticks):
    """The launch's logits and values are those of the same modules on the CPU."""
    halves[0].launch(ticks)
    for net, obs in zip(nets, halves[0].observations(), strict=True):
        alone = DefaultRLModule(
            net.module.observation_space, net.module.action_space, model_config=net.module.model_config
        )
        alone.set_state(net.module.get_state())
        with torch.no_grad():
            expected = alone.forward_exploration({"obs": torch.from_numpy(obs)})
        outputs = halves[0].launched.outputs(net)
        for key, tensor in expected.items():
            np.testing.assert_allclose(outputs[key], tensor.numpy(), rtol=1e-3, atol=1e-4, err_msg=key)


def measure_loop(device, num_envs, n, *, captured, buffered):
    """(agent steps per second, busy share) of the bare loop."""
    generator = torch.Generator(device).manual_seed(0)
    capture = EagerCalls()
    if device.type == "cuda":
        capture = (CudaGraphs if captured else Uncaptured)(device, generator)
    ticks = TickGraphs(capture)
    probe = SimpleSpread(1, N=AGENTS)
    spaces = probe.observation_spaces["agent_0"], probe.action_spaces["agent_0"]
    config = {"fcnet_hiddens": HIDDENS}
    nets = [Net(name, DefaultRLModule(*spaces, model_config=config).to(device).eval(), generator) for name in "ab"]
    halves = [Half(num_envs // 2, nets, seed) for seed in (0, num_envs)]
    check_equal(nets, halves, ticks)
    loop(halves, ticks, 3, buffered=buffered)
    begun = perf_counter()
    loop(halves, ticks, n, buffered=buffered)
    seconds = perf_counter() - begun
    share = busy_share(lambda: loop(halves, ticks, n, buffered=buffered), device)
    return n * 2 * (num_envs // 2) * AGENTS / seconds, share


def measure_runner(device, num_envs, n, **options):
    """The same of a whole runner."""
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(
            env="fastmarl.simple_spread",
            env_config={"N": AGENTS},
            num_envs_per_env_runner=num_envs,
            policies=["a", "b"],
            policy_mapping_fn=lambda agent, episode: "ab"[int(agent.split("_")[1]) % 2],
            model_config={"fcnet_hiddens": list(HIDDENS)},
            device=str(device),
            seed=0,
            **options,
        )
    )
    for _ in range(2):
        runner.sample(num_timesteps=num_envs * n)
    begun = perf_counter()
    runner.sample(num_timesteps=num_envs * n)
    seconds = perf_counter() - begun
    share = busy_share(lambda: runner.sample(num_timesteps=num_envs * n), device)
    backends = ", ".join(sorted(set(runner.inference_backends.values())))
    runner.stop()
    return n * num_envs * AGENTS / seconds, share, backends


def report(device, num_envs, n):
    """Lines of a table."""
    yield f"{'':52} agent steps/s  GPU busy"
    rates = {}
    for captured in (False, True):
        for buffered in (False, True):
            rate, share = measure_loop(device, num_envs, n, captured=captured, buffered=buffered)
            rates[captured, buffered] = rate
            name = f"loop, {'CUDA graphs' if captured else 'no graphs'}, {'double' if buffered else 'single'} buffering"
            yield f"{name:52} {rate:13,.0f} {share:9.1%}"
    yield (
        f"CUDA graphs: x {rates[True, False] / rates[False, False]:.2f}, "
        f"double buffering: x {rates[True, True] / rates[True, False]:.2f}, "
        f"both: x {rates[True, True] / rates[False, False]:.2f}"
    )
    for options in ({"cuda_graphs": False}, {}, {"worker_num_splits": 2}, {"inference_dtype": "bfloat16"}):
        rate, share, backends = measure_runner(device, num_envs, n, **options)
        name = f"runner, {options or 'default options'}: {backends}"
        yield f"{name:52.52} {rate:13,.0f} {share:9.1%}"


@pytest.mark.benchmark(group="gpu")
def bench_small_on_cpu(benchmark):
    lines = benchmark.pedantic(lambda: list(report(torch.device("cpu"), 4, 3)), rounds=1)
    assert len(lines) == 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--envs", type=int, default=4096 if torch.cuda.is_available() else 64)
    parser.add_argument("--ticks", type=int, default=200 if torch.cuda.is_available() else 20)
    args = parser.parse_args()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}: {args.envs} envs x {AGENTS} agents, {args.ticks} ticks")
    for line in report(device, args.envs, args.ticks):
        print(line, flush=True)


if __name__ == "__main__":
    main()
