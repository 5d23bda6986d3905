"""A stand-in for PufferLib's native envs, and what a sampled record of such an env must be."""

import gymnasium as gym
import numpy as np


class Rows:
    """Has what a PufferEnv has, and writes in place. A row observes (its number, its episode, time in it, the last
    action); its reward is episode + time / 8. Its episodes are `lengths[row]` steps long."""

    def __init__(self, lengths, *, next_step=False, truncates=False, dtype=np.int8):
        self.lengths, self.next_step = np.asarray(lengths), next_step
        self.num_agents = n = len(lengths)
        self.single_observation_space = gym.spaces.Box(0, 99, (2, 2), dtype)
        self.single_action_space = gym.spaces.Discrete(3)
        self.observations = np.zeros((n, 2, 2), dtype)
        self.rewards = np.zeros(n, np.float32)
        self.terminals, self.truncations = np.zeros((2, n), bool)
        self.masks = np.ones(n, bool)
        self._flags = self.truncations if truncates else self.terminals
        self.seeds = []
        self.closed = False

    def reset(self, seed=None):
        self.seeds.append(seed)
        self.episode, self.t = np.zeros((2, self.num_agents), int)
        self._flags[:] = False
        self._observe(0)
        return self.observations, []

    def step(self, actions):
        begins = self._flags.copy() if self.next_step else np.zeros(self.num_agents, bool)
        self.t += 1
        self._flags[:] = (self.t == self.lengths) & ~begins
        self.rewards[:] = np.where(begins, 0, self.episode + self.t / 8)
        if not self.next_step:
            begins = self._flags
        self.episode[begins] += 1
        self.t[begins] = 0
        self._observe(actions)
        return self.observations, self.rewards, self.terminals, self.truncations, [{"n": 1}]

    def _observe(self, actions):
        values = np.arange(self.num_agents), self.episode, self.t, np.where(self.t, actions, 0)
        self.observations[:] = np.stack(values, 1).reshape(-1, 2, 2)

    def close(self):
        self.closed = True


def check_replay(sampled, env, seed):
    """Check that `env`, made like the sampled one, returns the same for the recorded actions.

    It resets in the step that ends an episode, for all agents of an env at once. Returns the number of ended episodes.
    """
    num_envs, agents = sampled.adapter.num_envs, sampled.adapter.possible_agents
    env.reset(seed=seed)
    n_ended = 0
    for tick in range(sampled.steps):
        parts = [
            (episode.agent_episodes[agent], t)
            for episode, t in (sampled.at(env_index, tick) for env_index in range(num_envs))
            for agent in agents
        ]
        before = env.observations.copy()
        actions = np.array([part.get_actions(t) for part, t in parts])
        env.step(actions)
        for row, (part, t) in enumerate(parts):
            np.testing.assert_array_equal(part.get_observations(t), before[row])
            assert part.get_rewards(t) == env.rewards[row]
            ends = env.terminals[row] or env.truncations[row]
            assert (part.is_done and len(part) == t + 1) == ends
            if ends:
                n_ended += 1
                np.testing.assert_array_equal(part.get_observations(-1), before[row])  # the last one is not sent
                assert (part.is_terminated, part.is_truncated) == (env.terminals[row], not env.terminals[row])
    return n_ended
