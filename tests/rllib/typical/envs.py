"""Envs of the kinds that projects have, in a few lines each. All chance comes from the seed of the first reset."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from ray.rllib.env.multi_agent_env import MultiAgentEnv

Step = tuple[dict, dict, dict, dict, dict]


class SmallEnv(MultiAgentEnv):
    """Agents act at the same time, for `max_steps` at most. Subclasses say who there is and what happens."""

    max_steps = 15
    names: tuple[Any, ...] = ()

    def __init__(self, config: Any):
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.possible_agents = [*self.names]
        pairs = {agent: self.spaces_of(agent) for agent in self.names}
        self.observation_spaces = {agent: pair[0] for agent, pair in pairs.items()}
        self.action_spaces = {agent: pair[1] for agent, pair in pairs.items()}
        self.t = 0
        self.agents: list[Any] = []

    def spaces_of(self, agent: Any) -> tuple[Space, Space]:
        """(observation space, action space)"""
        return Box(-9, 9, (3,), np.float32), Discrete(3)

    def begin(self) -> None:
        """Set up a new episode; `agents` are all there are."""

    def advance(self, actions: dict) -> tuple[dict, set]:
        """(rewards, agents that end)"""
        raise NotImplementedError

    def observe(self, agent: Any) -> Any:
        return self.rng.normal(size=3).astype(np.float32)

    def info(self, agent: Any) -> dict[str, Any]:
        return {}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.agents = 0, [*self.names]
        self.begin()
        return self._seen(self.agents)

    def step(self, actions: dict) -> Step:
        self.t += 1
        rewards, ended = self.advance(actions)
        observations, infos = self._seen(self.agents)
        self.agents = [agent for agent in self.agents if agent not in ended]
        terminateds = {**dict.fromkeys(ended, True), "__all__": not self.agents}
        is_late = self.t >= self.max_steps
        return observations, rewards, terminateds, {"__all__": is_late and bool(self.agents)}, infos

    def _seen(self, agents: list) -> tuple[dict, dict]:
        infos = {agent: info for agent in agents if (info := self.info(agent))}
        return {agent: self.observe(agent) for agent in agents}, infos


class Meadow(SmallEnv):
    """Predators and prey that starve, and are born as long as there are names."""

    names = (*(f"speed_1_predator_{i}" for i in range(4)), *(f"speed_1_prey_{i}" for i in range(7)))

    def begin(self) -> None:
        self.agents = [self.names[0], self.names[1], self.names[4], self.names[5], self.names[6]]
        self._unborn = [name for name in self.names if name not in self.agents]
        self._energy = dict.fromkeys(self.names, 2.0)

    def advance(self, actions: dict) -> tuple[dict, set]:
        for agent, action in actions.items():
            self._energy[agent] -= 0.2 * int(action)
        rewards = {agent: 0.1 * float(self._energy[agent]) for agent in actions}
        if self._unborn and self.rng.random() < 0.4:
            self.agents.append(self._unborn.pop(int(self.rng.integers(len(self._unborn)))))
        return rewards, {agent for agent in actions if self._energy[agent] <= 0}


class Market(SmallEnv):
    """Traders with bounded continuous actions; all of them are truncated at once, and share one info."""

    max_steps = 9
    names = ("market_maker_0", "market_maker_1", "momentum_trader_0", "arbitrageur_0")

    def spaces_of(self, agent: Any) -> tuple[Space, Space]:
        return Box(-np.inf, np.inf, (4,), np.float32), Box(np.float32([0, -1]), np.float32([3, 1]))

    def begin(self) -> None:
        self._news = {"price": 100.0}

    def advance(self, actions: dict) -> tuple[dict, set]:
        self._news = {"price": 100.0 + float(sum(action[1] for action in actions.values()))}
        return {agent: float(action[0] * action[1]) for agent, action in actions.items()}, set()

    def observe(self, agent: Any) -> Any:
        return np.append(self.rng.normal(size=3), self._news["price"] / 100).astype(np.float32)

    def info(self, agent: Any) -> dict[str, Any]:
        return self._news


class Railway(SmallEnv):
    """Trains that leave when they have arrived. `trains` is what callbacks look at."""

    names = ("0", "1", "2", "3")

    def begin(self) -> None:
        self.trains = [SimpleNamespace(handle=name, position=0, state="MOVING") for name in self.names]

    def advance(self, actions: dict) -> tuple[dict, set]:
        for train in self.trains:
            train.position += int(actions.get(train.handle, 0) == 2)
            train.state = "DONE" if train.position >= 3 else "MOVING"
        ended = {train.handle for train in self.trains if train.state == "DONE"}
        return {agent: 1.0 if agent in ended else -0.1 for agent in actions}, ended

    def info(self, agent: Any) -> dict[str, Any]:
        return {"position": self.trains[int(agent)].position, "success": self.trains[int(agent)].state == "DONE"}


class Crossing(SmallEnv):
    """A traffic light, and cars that drive up one after the other and leave. Actions are dicts."""

    names = ("traffic_light_0", *(f"car_{i}" for i in range(8)))

    def spaces_of(self, agent: Any) -> tuple[Space, Space]:
        actions = Dict({"gear": Discrete(3), "speed": Box(-2, 2, (1,), np.float32)})
        return Box(-9, 9, (3,), np.float32), actions

    def begin(self) -> None:
        self.agents = [*self.names[:2]]
        self._left = dict.fromkeys(self.names, 4)

    def advance(self, actions: dict) -> tuple[dict, set]:
        for agent, action in actions.items():
            self._left[agent] -= int(action["gear"] > 0 and agent != self.names[0])
        rewards = {agent: float(action["speed"][0]) - self._left[agent] for agent, action in actions.items()}
        if self.t % 2 and self.t // 2 + 2 < len(self.names):
            self.agents.append(self.names[self.t // 2 + 2])
        return rewards, {agent for agent in actions if self._left[agent] <= 0}


class Rooms(SmallEnv):
    """Agents in a grid world, each with an image, its direction and a mission; one may be through before the other."""

    max_steps = 10
    names = (0, 1)

    def spaces_of(self, agent: Any) -> tuple[Space, Space]:
        image = Box(0, 255, (3, 3, 2), np.uint8)
        return Dict({"image": image, "direction": Discrete(4), "mission": MultiDiscrete([3, 2])}), Discrete(7)

    def begin(self) -> None:
        self._direction = dict.fromkeys(self.names, 0)

    def advance(self, actions: dict) -> tuple[dict, set]:
        for agent, action in actions.items():
            self._direction[agent] = (self._direction[agent] + int(action)) % 4
        ended = {agent for agent in actions if actions[agent] == 6 and self.rng.random() < 0.5}
        return {agent: float(agent in ended) for agent in actions}, ended

    def observe(self, agent: Any) -> Any:
        image = self.rng.integers(0, 256, (3, 3, 2), np.uint8)
        return {"image": image, "direction": self._direction[agent], "mission": np.array([self.t % 3, 1])}


class Nim(MultiAgentEnv):
    """Two players take one to three counters by turns; who takes the last one wins. Masks say what may be taken."""

    def __init__(self, config: Any):
        super().__init__()
        self.agents = self.possible_agents = ["player_0", "player_1"]
        space = Dict({"observations": Box(0, 9, (2,), np.float32), "action_mask": Box(0, 1, (3,), np.float32)})
        self.observation_spaces = dict.fromkeys(self.agents, space)
        self.action_spaces = dict.fromkeys(self.agents, Discrete(3))
        self._n, self._turn = 9, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._n, self._turn = 9, 0
        return {self.agents[0]: self._view()}, {}

    def step(self, actions: dict) -> Step:
        ((player, action),) = actions.items()
        assert action < self._n, "the mask forbids it"
        self._n -= int(action) + 1
        self._turn = 1 - self._turn
        other = self.agents[self._turn]
        if self._n:
            return {other: self._view()}, {player: 0.0}, {"__all__": False}, {"__all__": False}, {}
        last = dict.fromkeys(self.agents, self._view())
        return last, {player: 1.0, other: -1.0}, {"__all__": True}, {"__all__": False}, {}

    def _view(self) -> dict[str, np.ndarray]:
        mask = (np.arange(3) < self._n).astype(np.float32)
        return {"observations": np.array([self._n, self._turn], np.float32), "action_mask": mask}
