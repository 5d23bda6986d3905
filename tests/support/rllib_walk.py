"""Small envs of RLlib's kind."""

from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.env.multi_agent_env import MultiAgentEnv


class Walk(MultiAgentEnv):
    """Agents are rewarded with 1 and 2; an episode has 5 steps. The config may change that."""

    failures = 0  # steps that will fail
    fails_to_close = False

    def __init__(self, config: Any = None):
        super().__init__()
        self.options = {"length": 5, "longer": 0, "shape": (2,), "action_space": gym.spaces.Discrete(3)} | dict(config)
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys("ab", gym.spaces.Box(-1, 1, self.options["shape"], np.float32))
        self.action_spaces = dict.fromkeys("ab", self.options["action_space"])
        self.t, self.length = 0, self.options["length"]
        self.seeds: list[int | None] = []
        self.received: list[Any] = []

    def observe(self) -> dict[str, Any]:
        return {agent: np.zeros(self.options["shape"], np.float32) for agent in "ab"}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, ...]:
        self.t, self.length = 0, self.length + self.options["longer"]
        self.seeds.append(seed)
        return self.observe(), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        if Walk.failures:
            Walk.failures -= 1
            raise ValueError("broken")
        self.t += 1
        self.received.extend(actions.values())
        over = self.t >= self.length
        flags = dict.fromkeys(("a", "b", "__all__"), int(over) if "is_wrong" in self.options else over)
        return self.observe(), {"a": 1.0, "b": 2.0}, flags, flags, {}

    def close(self) -> None:
        if Walk.fails_to_close:
            raise OSError("simulator is gone")


class RLlibClock(MultiAgentEnv):
    """Observations are the number of steps so far; subclasses define who is observed, rewarded and ended."""

    length = 10
    possible_agents: list = ["a0", "a1"]  # noqa: RUF012

    def __init__(self, config: Any = None):
        super().__init__()
        self.agents = self.possible_agents = list(type(self).possible_agents)
        self.observation_spaces = dict.fromkeys(self.agents, gym.spaces.Box(-np.inf, np.inf, (4,), np.float32))
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(3))
        self.t = 0

    def sees(self, t: int) -> list:
        return self.possible_agents

    def pays(self, t: int) -> dict:
        return {}

    def ends(self, t: int) -> list:
        return []

    def observe(self) -> dict:
        return {agent: np.full(4, self.t, np.float32) for agent in self.sees(self.t)}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.t = 0
        return self.observe(), {}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.t += 1
        terminateds = dict.fromkeys(self.ends(self.t), True) | {"__all__": self.t == self.length}
        return self.observe(), self.pays(self.t), terminateds, {"__all__": False}, {}
