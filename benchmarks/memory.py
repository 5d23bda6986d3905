"""Print resident memory and speed over many agent steps, while episodes are dropped at once.

    python benchmarks/memory.py [AGENT_STEPS] [--metrics] [--ever-new-agents]
    python benchmarks/memory.py --league MODULES [--fcnet-hiddens 256 256]
    python benchmarks/memory.py --env-workers

By default `get_metrics()` is never called, and 8 agents in 8 envs start a new episode every 100 steps. With
--ever-new-agents there is one endless episode, in which every agent stays for only four steps. --league measures the
memory and time that inactive modules cost, --env-workers the costs of a worker process that imports this script, and of
one that doesn't.
"""

import argparse
import ctypes
import gc
import multiprocessing
from importlib import import_module
from time import perf_counter

import numpy as np
import psutil
import torch
from envs import EverNewAgents
from policies import NoPolicy

import fastmarl
from fastmarl.bench.relative_speed_table import ReadyDicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agent_steps", type=int, nargs="?", default=5_000_000)
    parser.add_argument("--metrics", action="store_true", help="call get_metrics() after each sample()")
    parser.add_argument("--ever-new-agents", action="store_true", help="agents come and go in an endless episode")
    parser.add_argument("--league", type=int, metavar="MODULES", help="memory and time of modules that don't act")
    parser.add_argument("--fcnet-hiddens", type=int, nargs="+", default=[64, 64], help="sizes of their layers")
    parser.add_argument("--env-workers", action="store_true", help="memory and CPU time of worker processes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.env_workers:
        measure_workers("a function of this script", simple_spread)
        measure_workers("a name", "mpe2.simple_spread_v3")
        return
    if args.league:
        measure_league(args.league, args.fcnet_hiddens)
        return
    runner = fastmarl.MultiAgentEnvRunner(endless_config() if args.ever_new_agents else config())
    process = psutil.Process()
    steps, printed, since = 0, 0, perf_counter()
    while steps <= args.agent_steps:
        steps += sum(episode.agent_steps() for episode in runner.sample(num_timesteps=4000))
        if args.metrics:
            runner.get_metrics()
        if steps - printed >= args.agent_steps // 10:
            now = perf_counter()
            speed, memory = (steps - printed) / (now - since), process.memory_info().rss / 2**20
            print(f"{steps:>12,} agent steps  {memory:8.1f} MiB  {speed:>10,.0f} agent steps/s", flush=True)
            printed, since = steps, now
    if args.ever_new_agents:
        print(f"{runner.env.envs[0].n_ids:,} agents")
    runner.stop()


def config():
    return fastmarl.EnvRunnerConfig(
        env=ReadyDicts, env_config={"agents": 8}, num_envs_per_env_runner=8, policies={"nobody": NoPolicy()}
    )


def endless_config():
    return fastmarl.EnvRunnerConfig(env=EverNewAgents, env_config={"live": 40, "stay": 4})


def measure_league(n, hiddens):
    """Print the memory of each of n modules without agents, and the time that they add to a tick."""
    spec = fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": hiddens})
    config = fastmarl.EnvRunnerConfig(
        env=ReadyDicts,
        env_config={"agents": 8},
        num_envs_per_env_runner=8,
        policies={"main": spec, "v0": spec},
        policy_mapping_fn=everybody("main"),
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    weights, names = runner.get_weights()["main"], [f"v{i + 1}" for i in range(n)]
    weights_kib = sum(array.nbytes for array in weights.values()) / 1024
    ready = fastmarl.RLModuleSpec(None, *runner.get_spaces()["main"], model_config={"fcnet_hiddens": hiddens})
    times, sizes = [tick_us(runner)], [held_kib(runner)]
    alone = [with_weights(ready.build(), weights) for _ in names]
    sizes.append(held_kib(runner))
    for name in names:
        runner.add_module(name, spec)
        runner.set_weights({name: weights})
    sizes.append(held_kib(runner))
    times.append(tick_us(runner))
    for name in names:
        act_in_some_episodes(runner, name)
    sizes.append(held_kib(runner))
    times.append(tick_us(runner))
    outside, inside, acted = (size / len(alone) for size in np.diff(sizes))
    print(f"{n} modules {hiddens}, KiB each: {weights_kib:.1f} of weights; {outside:.1f} as an object, {inside:.1f} "
          f"in a runner, {inside + acted:.1f} once it has acted and rests")  # fmt: skip
    print("microseconds per tick without them {:.1f}, with them {:.1f}, once they rest {:.1f}".format(*times))
    runner.stop()


def simple_spread(env_config):
    return import_module("mpe2.simple_spread_v3").parallel_env(**env_config)


def measure_workers(what, env):
    """Print the memory of each of two workers, and the CPU time that it took to start and step."""
    config = fastmarl.EnvRunnerConfig(
        env=env, num_envs_per_env_runner=8, gym_env_vectorize_mode="async", num_env_workers=2
    )
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        runner.sample(num_timesteps=800)
        for process in (psutil.Process(worker.pid) for worker in multiprocessing.active_children()):
            memory = process.memory_full_info()
            pss, uss, rss = (size / 2**20 for size in (memory.pss, memory.uss, memory.rss))
            seconds = sum(process.cpu_times()[:2])
            print(f"env is {what}: PSS {pss:.0f} MiB, private {uss:.0f}, RSS {rss:.0f}; {seconds:.2f} s of CPU")


def everybody(module_id):
    return lambda agent_id, episode: module_id


def with_weights(module, weights):
    module.set_state(weights)
    return module


def act_in_some_episodes(runner, name):
    """Let all agents act with this module, then with the main one again."""
    for module_id in (name, "main"):
        runner.set_policy_mapping_fn(everybody(module_id))
        for _ in range(2):
            runner.sample(num_episodes=8)


def held_kib(runner):
    """Return the private memory of this process, after bringing the runner into the same state each time."""
    act_in_some_episodes(runner, "v0")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_full_info().uss / 1024


def tick_us(runner, ticks=200):
    """Return the microseconds per tick, the least of several calls."""
    seconds = []
    for _ in range(20):
        begun = perf_counter()
        runner.sample(num_timesteps=ticks * runner.num_envs)
        seconds.append(perf_counter() - begun)
    return 1e6 * min(seconds) / ticks


if __name__ == "__main__":
    main()
