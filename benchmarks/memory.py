"""Resident memory over many agent steps, episodes dropped at once: prints it as it goes, with the speed.

    python benchmarks/memory.py [AGENT_STEPS] [--metrics] [--ever-new-agents]

By default `get_metrics()` is never called, and 8 agents in 8 envs begin anew every 100 steps. With --ever-new-agents
there is one episode without end, in which every agent stays for four steps only.
"""

import argparse
from time import perf_counter

import psutil
import torch
from envs import EverNewAgents
from policies import NoPolicy

import fastmarl
from fastmarl.efficiency_table import ReadyDicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agent_steps", type=int, nargs="?", default=5_000_000)
    parser.add_argument("--metrics", action="store_true", help="call get_metrics() after each sample()")
    parser.add_argument("--ever-new-agents", action="store_true", help="agents come and go in an endless episode")
    args = parser.parse_args()
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
