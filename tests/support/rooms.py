"""A batch of environments whose agents come and go."""

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from fastmarl.core.envs.arrays import ArrayEnv


class Rooms(ArrayEnv):
    """Three agents count the steps in their room; episodes of env e last 3 + e steps. Writes into what it got.

    Args:
        actions: a list, for all actions that it gets.
        part: which of several batches it is.
        before, after: called as before(rooms) and after(rooms, out) in each step.
    """

    def __init__(self, num_envs, actions=None, *, part=0, before=lambda rooms: None, after=lambda rooms, out: None):
        box, wide = gym.spaces.Box(0, 99, (2,), np.float32), gym.spaces.Box(-9, 99, (2,), np.float32)
        groups = {"near": ["a", "b"], "far": ["c"]}
        spaces = {"near": box, "far": wide}, dict.fromkeys(groups, gym.spaces.Discrete(4, start=10))
        super().__init__(num_envs, groups, *spaces)
        self.t = np.zeros(num_envs, np.int64)
        self.actions = actions if actions is not None else []
        self.part, self.before, self.after = part, before, after
        self.n_steps, self.closed = 0, False

    def reset(self, env_indices, out, *, seeds=None):
        self.t[env_indices] = 0
        self._observe(out)

    def step(self, actions, out):
        self.n_steps += 1
        self.before(self)
        self.actions.append({name: array.copy() for name, array in actions.items()})
        for array in actions.values():
            array[...] = -1
        self.t += 1
        self._observe(out)
        for group in out.groups.values():
            group.rewards[:] = self.t[:, None]
        out.truncated[:] = self.t == 3 + np.arange(self.num_envs)
        self.after(self, out)

    def _observe(self, out):
        for name, group in out.groups.items():
            group.obs[:] = self.t[:, None, None] + (0.5 if name == "far" else 0.0)

    def state(self):
        return np.stack([self.t, 100 + self.t], 1)

    def close(self):
        self.closed = True


def rooms(**options):
    """Make an `env` for a runner's config."""
    return lambda config: Rooms(config.num_envs, part=config.vector_index, **options)


class Echo(torch.nn.Module):
    """Acts by the time."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(4, start=10)

    def forward(self, batch):
        return {"actions": batch["obs"][:, 0].long() % 4, "seen": batch["obs"].clone()}


def make_runner(num_envs=3, env=None, **options):
    defaults = {"policies": {"p": Echo()}, "num_envs_per_env_runner": num_envs}
    env = env or (lambda config: Rooms(config.num_envs))
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, **(defaults | options)))
