"""simple_spread with a 64-64 net: bare loop, fastmarl and RLlib's MultiAgentEnvRunner in turn, in one process.

    python benchmarks/rllib_spread.py

Needs the extras `rllib` and `pettingzoo`. RLlib's module samples without a value head's output, ours with it.
"""

import logging
import statistics
import time

import torch
from mpe2 import simple_spread_v3
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

import fastmarl
from fastmarl.bare_envs import BareEnvs
from fastmarl.efficiency import BareNetwork

TICKS = 128
ROUNDS = 5


def make_rllib_runner(num_envs):
    register_env("spread", lambda config: ParallelPettingZooEnv(simple_spread_v3.parallel_env()))
    model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=True)
    config = (
        PPOConfig()
        .environment("spread")
        .multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
        .rl_module(rl_module_spec=RLModuleSpec(model_config=model))
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
    )
    return MultiAgentEnvRunner(config=config)


def agent_steps_per_second(runner, num_envs):
    begun = time.perf_counter()
    episodes = runner.sample(num_timesteps=TICKS * num_envs)
    seconds = time.perf_counter() - begun
    runner.get_metrics()
    return sum(episode.agent_steps() for episode in episodes) / seconds


def main():
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print(f"{'envs':>4} {'limit':>10} {'fastmarl':>10} {'RLlib':>10}  agent steps/s; fastmarl/limit, fastmarl/RLlib")
    for num_envs in (1, 8, 32):
        config = fastmarl.EnvRunnerConfig(
            env="mpe2.simple_spread_v3",
            num_envs_per_env_runner=num_envs,
            model_config={"fcnet_hiddens": [64, 64]},
            seed=0,
        )
        ours, owner, theirs = (
            fastmarl.MultiAgentEnvRunner(config),
            fastmarl.MultiAgentEnvRunner(config),
            make_rllib_runner(num_envs),
        )
        envs, network = BareEnvs(owner.env.envs, seed=0, seconds=0.5), BareNetwork(ours)
        rows = []
        for _ in range(ROUNDS + 1):
            limit = 1e6 / (envs.run() + network.run(envs.calls, network.sample_as_torch_does))
            rows.append((limit, agent_steps_per_second(ours, num_envs), agent_steps_per_second(theirs, num_envs)))
        limit, fast, rllib = (statistics.median(column) for column in zip(*rows[1:], strict=True))
        efficiency = statistics.median(f / bare for bare, f, _ in rows[1:])
        ratio = statistics.median(f / r for _, f, r in rows[1:])
        print(
            f"{num_envs:>4} {limit:>10,.0f} {fast:>10,.0f} {rllib:>10,.0f}  {efficiency:.2f}  {ratio:.2f}", flush=True
        )
        for runner in (ours, owner, theirs):
            runner.stop()


if __name__ == "__main__":
    main()
