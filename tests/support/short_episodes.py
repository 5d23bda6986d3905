"""A small env whose observations are kept as they were sent, and runners of it with connectors."""

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from support.scripted import Scripted, Step

MODULE = "default_policy"
NESTED = gym.spaces.Dict(
    {
        "z": gym.spaces.Box(-1, 1, (2, 2), np.float64),
        "a": gym.spaces.Discrete(4, start=-1),
        "m": gym.spaces.Tuple([gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary([2, 2])]),
        "action_mask": gym.spaces.MultiBinary(3),
        "image": gym.spaces.Box(0, 255, (1, 2, 1), np.uint8),
        "scalar": gym.spaces.Box(-9, 9, (), np.float32),
    }
)


class Short(fastmarl.MultiAgentEnv):
    """Episodes of `length` steps. Agents observe random values of a space; their rewards are 1, 2, ..., or `rewards`.

    Args:
        config: "n_agents" or "ids", "length", "space"; "silent": no observation at the end; "rewards"; "bad_at": an
            observation.
    """

    def __init__(self, config):
        self.config = config
        self.possible_agents = config.get("ids", [f"agent_{i}" for i in range(config.get("n_agents", 1))])
        self.space = config.get("space", gym.spaces.Box(-5, 5, (3,), np.float32))
        self.observation_spaces = dict.fromkeys(self.possible_agents, self.space)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(3))
        self.space.seed(getattr(config, "vector_index", 0) + 100 * getattr(config, "worker_index", 0))
        self.sent = []
        self.n_resets = 0

    def observe(self):
        obs = {agent: self.space.sample() for agent in self.possible_agents}
        if "action_mask" in obs[self.possible_agents[0]]:
            for value in obs.values():
                value["action_mask"][self.t % 3] = 1
        if self.config.get("bad_at", {}).get("t") == self.t:
            obs[self.possible_agents[-1]] = self.config["bad_at"]["obs"]
        self.sent += obs.values()
        return obs

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.n_resets += 1
        return self.observe(), {}

    def step(self, actions):
        self.t += 1
        over = self.t == self.config.get("length", 5)
        rewards = self.config.get("rewards", [self.t] * self.t)
        obs = {} if over and self.config.get("silent") else self.observe()
        return obs, dict.fromkeys(self.possible_agents, rewards[self.t - 1]), {"__all__": over}, {}, {}


SECONDS = gym.spaces.Dict({"seconds": gym.spaces.Box(0, np.inf, (1,), np.float64)})


def clock(config=None):
    """Make an env of 50 steps whose observations are a time in seconds, of which float32 can hold no minutes."""
    return Scripted(
        [Step("a", 1.0, terminated=t == 50) for t in range(51)],
        space=SECONDS,
        action_space=gym.spaces.Discrete(2),
        see=lambda agent, t: {"seconds": np.array([1.7e9 + 60 * t])},
    )


class Later(torch.nn.Module):
    """Chooses 1 if the clock is above 0, else 0."""

    def forward(self, batch):
        seconds = batch["obs"]["seconds"]
        return {"action_dist_inputs": torch.cat([-seconds, seconds], -1)}


def make_runner(connector, *, env=Short, env_config=None, module=None, **options):
    config = fastmarl.EnvRunnerConfig(
        env=env,
        env_config=env_config or {},
        env_to_module_connector=connector,
        policies={MODULE: module},
        **{"seed": 0, "model_config": {"fcnet_hiddens": [4]}} | options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def state_of(runner):
    return runner.get_state("env_to_module_connector")["env_to_module_connector"]


def stats_of(runner, part="stats"):
    (moments,) = state_of(runner)[MODULE]["MeanStdFilter"][part]
    return moments


def sent_by(runner):
    return np.concatenate([np.array(env.sent, np.float64).reshape(len(env.sent), -1) for env in runner.env.envs])


def assert_moments(moments, rows):
    assert moments["count"] == len(rows)
    np.testing.assert_allclose(moments["mean"], rows.mean(0), atol=1e-9)
    np.testing.assert_allclose(moments["m2"] / len(rows), rows.var(0), rtol=1e-9)


def parts_of(episodes):
    return [part for episode in episodes for part in episode.agent_episodes.values()]
