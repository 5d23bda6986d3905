"""Resident memory over many agent steps, episodes dropped at once: prints it as it goes.

    python benchmarks/memory.py [AGENT_STEPS] [--metrics]

By default `get_metrics()` is never called.
"""

import argparse

import psutil
import torch
from policies import NoPolicy

import fastmarl
from fastmarl.efficiency_table import ReadyDicts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agent_steps", type=int, nargs="?", default=5_000_000)
    parser.add_argument("--metrics", action="store_true", help="call get_metrics() after each sample()")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = fastmarl.EnvRunnerConfig(
        env=ReadyDicts, env_config={"agents": 8}, num_envs_per_env_runner=8, policies={"nobody": NoPolicy()}
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    process = psutil.Process()
    steps, next_print = 0, 0
    while steps <= args.agent_steps:
        if steps >= next_print:
            print(f"{steps:>12,} agent steps  {process.memory_info().rss / 2**20:8.1f} MiB")
            next_print += args.agent_steps // 10
        steps += sum(episode.agent_steps() for episode in runner.sample(num_timesteps=4000))
        if args.metrics:
            runner.get_metrics()
    runner.stop()


if __name__ == "__main__":
    main()
