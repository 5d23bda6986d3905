"""Small environments for tests, and a wrapper that reveals shared memory."""

from __future__ import annotations

from collections.abc import Hashable
from copy import deepcopy
from itertools import cycle
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.base import MultiAgentEnv, env_spaces
from fastmarl.core.envs.values import arrays_in
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.objects.public import public


@public("fastmarl.testing")
class ClockEnv(MultiAgentEnv):
    """Observations count the env steps since the reset; subclasses choose the observed, rewarded and terminated agents.

    Args:
        agents: Ids of the agents.
        episode_length: Number of env steps after which all agents are truncated.
        obs_size: Size of an observation, float32 [obs_size], filled with the time; actions are Discrete(3).
    """

    def __init__(self, agents: list[Any], episode_length: int = 10, obs_size: int = 4):
        self.possible_agents = list(agents)
        self.observation_spaces = dict.fromkeys(agents, gym.spaces.Box(0, np.inf, (obs_size,), np.float32))
        self.action_spaces = dict.fromkeys(agents, gym.spaces.Discrete(3))
        self.episode_length = episode_length
        self._obs_size = obs_size
        self.env_t = 0

    def observed(self, env_t: int) -> list[Any]:
        """Return the agents observed at `env_t`."""
        return self.possible_agents

    def rewards_at(self, env_t: int) -> dict[Any, float]:
        """Return the rewards of the step that leads to `env_t`."""
        return dict.fromkeys(self.observed(env_t - 1), 1.0)

    def terminated(self, env_t: int) -> list[Any]:
        """Return the agents terminated at `env_t`."""
        return []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.env_t = 0
        return self._observations(), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.env_t += 1
        terminateds = {**dict.fromkeys(self.terminated(self.env_t), True), "__all__": False}
        truncateds = {"__all__": self.env_t >= self.episode_length}
        return self._observations(), self.rewards_at(self.env_t), terminateds, truncateds, {}

    def _observations(self) -> dict[Any, np.ndarray]:
        return {agent: np.full(self._obs_size, self.env_t, np.float32) for agent in self.observed(self.env_t)}


@public("fastmarl.testing")
class CountingEnv(ClockEnv):
    """All agents are observed at every step, with a reward of 1 for every action.

    Args:
        num_agents: Number of agents, named "agent_0", ...
        episode_length: See `ClockEnv`.
        obs_size: See `ClockEnv`.
    """

    def __init__(self, num_agents: int = 2, episode_length: int = 10, obs_size: int = 4):
        super().__init__([f"agent_{i}" for i in range(num_agents)], episode_length, obs_size)


@public("fastmarl.testing")
class TurnBasedEnv(CountingEnv):
    """Agents are observed one after the other, and all of them at the end.

    The agent that acts at t - 1 receives a reward of t, and the next one -0.5.
    """

    def observed(self, env_t: int) -> list[Any]:
        if env_t >= self.episode_length:
            return self.possible_agents
        return [self.possible_agents[env_t % len(self.possible_agents)]]

    def rewards_at(self, env_t: int) -> dict[Any, float]:
        n = len(self.possible_agents)
        return {self.possible_agents[(env_t - 1) % n]: float(env_t), self.possible_agents[env_t % n]: -0.5}


@public("fastmarl.testing")
class DyingAgentsEnv(ClockEnv):
    """Agents come and go according to a script; each receives a reward of 1 for every action.

    Args:
        stays: Agent id -> list of (first, last), the env steps of the first and last observation of each stay. The
            agent terminates at the last one; for a stay that outlasts the episode, `last` is beyond the end of the
            episode.
        episode_length: See `ClockEnv`.
        obs_size: See `ClockEnv`.
    """

    def __init__(self, stays: dict[Any, list[tuple[int, int]]], episode_length: int = 10, obs_size: int = 4):
        super().__init__(list(stays), episode_length, obs_size)
        self._stays = stays

    def observed(self, env_t: int) -> list[Any]:
        return [a for a, stays in self._stays.items() if any(first <= env_t <= last for first, last in stays)]

    def rewards_at(self, env_t: int) -> dict[Any, float]:
        stays = self._stays.items()
        return {a: 1.0 for a, spans in stays if any(first < env_t <= last for first, last in spans)}

    def terminated(self, env_t: int) -> list[Any]:
        return [a for a, stays in self._stays.items() if any(last == env_t for _, last in stays)]


@public("fastmarl.testing")
class ScriptedEnv(MultiAgentEnv):
    """Plays back scripted results of reset() and step() in a loop.

    Args:
        script: Pairs (observations, infos) for resets, tuples of five dicts for steps. reset() skips to the next pair.
        observation_space: Observation space of every agent.
        action_space: Action space of every agent.

    Attributes:
        actions: All received action dicts, in order.
    """

    def __init__(self, script: list[tuple], observation_space: gym.Space, action_space: gym.Space):
        if not script or len(script[0]) != 2:
            raise EnvCheckError("a script must start with a pair (observations, infos) for the first reset")
        self.possible_agents = list(dict.fromkeys(agent for tick in script for agent in tick[0]))
        self.observation_space = observation_space
        self.action_space = action_space
        self.actions: list[dict] = []
        self._script = cycle(script)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        return next(tick for tick in self._script if len(tick) == 2)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.actions.append(actions)
        return next(self._script)


@public("fastmarl.testing")
class ReusingEnv(MultiAgentEnv):
    """Wraps an env so that returned arrays change later, as in envs that reuse buffers.

    Each call overwrites all arrays returned so far, in observations and infos; `step()` also overwrites arrays in the
    actions it received.
    """

    def __init__(self, env: Any):
        self.env = env
        self.possible_agents = list(env.possible_agents)
        self._returned: list[np.ndarray] = []
        self._calls = 0

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        return self._private(self.env.reset(seed=seed, options=options))

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        result = self._private(self.env.step(deepcopy(actions)))
        for array in arrays_in(actions):
            self._overwrite(array)
        return result

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return env_spaces(self.env, agent_id)[0]

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return env_spaces(self.env, agent_id)[1]

    def _private(self, result: Any) -> Any:
        """Overwrite everything returned before, and return a copy of the values from the env."""
        self._calls += 1
        for array in self._returned:
            self._overwrite(array)
        result = deepcopy(result)
        self._returned += arrays_in(result)
        return result

    def _overwrite(self, array: np.ndarray) -> None:
        if array.dtype == bool:
            np.logical_not(array, out=array)
        elif array.dtype != object and array.flags.writeable:
            np.copyto(array, 100 + self._calls % 27, casting="unsafe")
