"""Bundled compiled batches: bare, in the runner with a small network, and beside their Python originals, bare.

    pytest benchmarks/bench_array_envs.py --benchmark-group-by=group --benchmark-columns=median

The saved results (`--benchmark-json`) have `agent_steps_per_s` and `us_per_agent_step`.
"""

import gymnasium as gym
import mpe2.simple_spread_v3
import mpe2.simple_tag_v3
import pytest
from pettingzoo.classic.connect_four import connect_four
from rates import note_rates, timed
from support.gridworld import PlainGridWorld

import fastmarl
from fastmarl.bench.bare_envs import bare_envs
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.base import MultiAgentEnv
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.registry import env_creator

TICKS = 64
KINDS = {
    "cart_pole": {"num_agents": 8},
    "simple_spread": {"N": 3},
    "simple_tag": {"num_adversaries": 3},
    "gridworld": {"num_agents": 4},
    "lbforaging": {"name": "Foraging-8x8-2p-2f-coop-v3"},
    "rware": {"name": "rware-tiny-4ag-v2"},
    "connect_four": {},
}
TEAMS = {  # of simple_tag
    "policies": ["adversary", "agent"],
    "policy_mapping_fn": lambda agent_id, episode: agent_id.split("_")[0],
}


class PlainCartPoles(MultiAgentEnv):
    """One Gymnasium environment per agent, stepped until all have ended."""

    def __init__(self, config):
        self.envs = [gym.make("CartPole-v1", disable_env_checker=True) for _ in range(config["num_agents"])]
        self.possible_agents = list(range(len(self.envs)))
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space

    def reset(self, *, seed=None, options=None):
        self.ended = set()
        first = {i: env.reset(seed=None if seed is None else seed + i)[0] for i, env in enumerate(self.envs)}
        return first, {}

    def step(self, actions):
        results = {i: self.envs[i].step(action) for i, action in actions.items()}
        obs, rewards, terminateds, truncateds, infos = (
            {i: result[part] for i, result in results.items()} for part in range(5)
        )
        self.ended |= {i for i in results if terminateds[i] or truncateds[i]}
        over = len(self.ended) == len(self.envs)
        return obs, rewards, {**terminateds, "__all__": over}, {**truncateds, "__all__": False}, infos


ORIGINALS = {
    "cart_pole": PlainCartPoles,
    "simple_spread": lambda config: as_multi_agent_env(mpe2.simple_spread_v3.parallel_env(**config)),
    "simple_tag": lambda config: as_multi_agent_env(mpe2.simple_tag_v3.parallel_env(**config)),
    "gridworld": PlainGridWorld,
    "lbforaging": lambda config: as_multi_agent_env(env_creator(f"lbforaging:{config['name']}")({})),
    "rware": lambda config: as_multi_agent_env(env_creator(f"rware:{config['name']}")({})),
    "connect_four": lambda config: as_multi_agent_env(connect_four.env(**config)),
}


@pytest.mark.benchmark(group="bare")
@pytest.mark.parametrize("num_envs", [1, 32, 1024])
@pytest.mark.parametrize("kind", KINDS)
def bench_bare_batch(benchmark, kind, num_envs):
    batch = env_creator(f"fastmarl.{kind}")(EnvContext(KINDS[kind], 0, num_envs=num_envs))
    bare = bare_envs([batch], 0, 0.0)
    timed(benchmark, bare.run, bare.agent_steps, rounds=9)
    assert bare.agent_steps > num_envs


@pytest.mark.benchmark(group="bare")
@pytest.mark.parametrize("kind", KINDS)
def bench_bare_original(benchmark, kind):
    bare = bare_envs([ORIGINALS[kind](KINDS[kind])], 0, 0.0)
    timed(benchmark, bare.run, bare.agent_steps, rounds=9)
    assert bare.agent_steps > 1


@pytest.mark.benchmark(group="runner, 64-64")
@pytest.mark.parametrize("num_envs", [1, 32, 1024])
@pytest.mark.parametrize("kind", KINDS)
def bench_runner(benchmark, kind, num_envs):
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(
            env=f"fastmarl.{kind}",
            env_config=KINDS[kind],
            num_envs_per_env_runner=num_envs,
            model_config={"fcnet_hiddens": [64, 64]},
            num_threads=1,
            seed=0,
            **(TEAMS if kind == "simple_tag" else {}),
        )
    )
    made = []

    def sample():
        made.append(sum(episode.agent_steps() for episode in runner.sample(num_timesteps=TICKS * num_envs)))

    benchmark.pedantic(sample, rounds=5, warmup_rounds=1)
    note_rates(benchmark, sum(made[1:]) / max(1, len(made) - 1))
    assert made[-1] >= TICKS * num_envs / 4
    runner.stop()
