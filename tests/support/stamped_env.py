"""An env whose observations tell where they come from, and what must be true of all that is sampled from it."""

import os
from itertools import count

import gymnasium as gym
import numpy as np

import fastmarl

N_AGENTS = 3
WIDTH = 6
LONG = 200_000  # bytes: a message of some packets
MADE = count()


class StampedEnv(fastmarl.MultiAgentEnv):
    """Observations are (env index, maker, episode, env step, agent, its last action); so are infos, if there are any.

    Args:
        config: `long`: interval of steps with infos of LONG bytes; `crash`: interval of steps at which the env raises
            or ends its process; 0 means never. `supports_checkpoint`: see there.
    """

    def __init__(self, config):
        self.possible_agents = [f"agent_{i}" for i in range(N_AGENTS)]
        space = gym.spaces.Box(-1, np.inf, (WIDTH,), np.float64)
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(1000))
        self.index, self.maker = config.vector_index, 10**9 * os.getpid() + next(MADE)  # no two are the same
        self.long, self.crash = config.get("long", 0), config.get("crash", 0)
        self.supports_checkpoint = config.get("supports_checkpoint", False)
        self.episode = self.t = self.total = 0

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        self.t = 0
        return self._observe(dict.fromkeys(self.possible_agents, -1))

    def step(self, actions):
        self.t += 1
        self.total += 1
        if self.crash and self.total % self.crash == self.crash - 1 - self.index:
            if self.index % 2:
                os._exit(1)
            raise ValueError("as configured")
        obs, infos = self._observe(actions)
        rewards = {agent: float(self.t + action) for agent, action in actions.items()}
        over = self.t == 7 + 5 * (self.index + self.episode) % 11
        return obs, rewards, {"__all__": over}, {"__all__": False}, infos

    def get_state(self):
        return {name: getattr(self, name) for name in ("episode", "t", "total")}

    def set_state(self, state):
        for name, number in state.items():
            setattr(self, name, number)

    def _observe(self, actions):
        obs = {
            agent: np.array([self.index, self.maker, self.episode, self.t, i, actions[agent]], np.float64)
            for i, agent in enumerate(self.possible_agents)
        }
        if not self.long or self.t % self.long:
            return obs, {}
        return obs, {agent: {"obs": value.tolist(), "more": bytes(LONG)} for agent, value in obs.items()}


class Witness:
    """Looks whether the chunks of calls that follow each other are what the envs have said, in their order."""

    def __init__(self):
        self._last = {}  # env index -> (maker, episode, env step, whether that was over)
        self._makers = set()
        self.n_checked = 0

    def check(self, chunks, *, interrupted):
        """Raises AssertionError. After an interrupt, there may be gaps."""
        for chunk in chunks:
            assert list(chunk.agent_episodes) == [f"agent_{i}" for i in range(N_AGENTS)]
            where = {_check_part(part, i, chunk) for i, part in enumerate(chunk.agent_episodes.values())}
            assert len(where) == 1, f"{where} in one chunk"
            env, maker, episode = where.pop()
            before = self._last.get(env)
            if before is None or before[0] != maker:
                assert maker not in self._makers, f"env {env} of {maker} after {before}"
                self._makers.add(maker)
            elif interrupted:
                assert (episode, chunk.env_t_started) >= before[1:3], f"{chunk} after {before}"
            else:
                want = (before[1] + 1, 0) if before[3] else before[1:3]
                assert (episode, chunk.env_t_started) == want, f"{chunk} after {before}"
            self._last[env] = (maker, episode, chunk.env_t, chunk.is_done)
            self.n_checked += 1


def _check_part(part, agent, chunk):
    """(env, maker, episode) of all of its observations."""
    obs = part.get_observations()
    want = np.empty_like(obs)
    want[:, :3] = obs[0, :3]
    want[:, 3] = np.arange(chunk.env_t_started, chunk.env_t + 1)
    want[:, 4] = agent
    want[1:, 5] = part.get_actions()
    want[0, 5] = obs[0, 5] if chunk.env_t_started else -1
    np.testing.assert_array_equal(obs, want)
    np.testing.assert_array_equal(part.get_rewards(), obs[1:, 3] + obs[1:, 5])
    for row, info in zip(obs.tolist(), part.get_infos(), strict=True):
        assert not info or info["obs"] == row
    return int(obs[0, 0]), int(obs[0, 1]), int(obs[0, 2])
