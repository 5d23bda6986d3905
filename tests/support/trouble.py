"""Small envs that misbehave on demand, for worker processes; importing them is quick."""

import os
import random
import signal
import time

import gymnasium as gym
import numpy as np

import fastmarl

BOX = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)


class Trouble(fastmarl.MultiAgentEnv):
    """Observations hold (made in this process before, number of the reset, env step); 50 steps, then truncated.

    `env_config["trouble"]`: {(vector index, total steps): "raise" | "hang" | "kill" | "exit"}, each done once if there
    is a folder `env_config["once"]`; `"in"`: "step" (default), "reset" or "init". `"made"`: a file to which each
    construction is written.
    """

    def __init__(self, config):
        self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, BOX)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(3))
        self.config = config
        self.total = self.t = self.n_resets = 0
        if "made" in config:
            with open(config["made"], "a") as file:
                file.write(f"{config.vector_index}\n")
        self._trouble("init")

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.n_resets += 1
        self._trouble("reset")
        return self._obs(), {}

    def step(self, actions):
        self.t += 1
        self.total += 1
        self._trouble("step")
        over = self.t == self.config.get("length", 50)
        rewards = {agent: float(self.t) for agent in self.possible_agents}
        return self._obs(), rewards, {"__all__": False}, {"__all__": over}, {}

    def pid(self):
        return os.getpid()

    def _obs(self):
        values = [self.config.vector_index, self.n_resets, self.t]
        return {agent: np.array(values, np.float32) for agent in self.possible_agents}

    def _trouble(self, where):
        kind = self.config.get("trouble", {}).get((self.config.vector_index, self.total))
        if kind is None or self.config.get("in", "step") != where:
            return
        if "once" in self.config:
            mark = os.path.join(self.config["once"], f"{self.config.vector_index}-{self.total}")
            if os.path.exists(mark):
                return
            open(mark, "w").close()
        if kind == "raise":
            raise KeyError(f"lost at {self.total}")
        if kind == "hang":
            time.sleep(600)
        if kind == "exit":
            os._exit(3)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "odd raise":
            raise UnpicklableError(lambda: None, "more")


class Lucky(Trouble):
    """Rewards come from Python's global generator."""

    def step(self, actions):
        obs, rewards, *rest = super().step(actions)
        return obs, {agent: random.random() for agent in rewards}, *rest


class UnpicklableError(Exception):
    """Can't be sent to another process."""

    def __init__(self, function, more):
        super().__init__(function)


class Odd(fastmarl.MultiAgentEnv):
    """Returns values of many types, in changing orders; agents leave and wait; nested and text observations."""

    def __init__(self, config):
        self.possible_agents = [0, "b", ("c", 1), "d"]
        nested = gym.spaces.Dict({"x": gym.spaces.Box(-9, 9, (2, 2), np.float64), "n": gym.spaces.Discrete(5)})
        self.observation_spaces = {
            0: BOX,
            "b": gym.spaces.Tuple((nested, gym.spaces.MultiBinary(3))),
            ("c", 1): gym.spaces.Discrete(7),
            "d": gym.spaces.Dict({"text": gym.spaces.Text(8), "v": BOX}) if config.get("text") else BOX,
        }
        self.action_spaces = {
            0: gym.spaces.Discrete(3, start=2),
            "b": gym.spaces.Box(-1, 1, (2,), np.float32),
            ("c", 1): gym.spaces.Dict({"k": gym.spaces.Discrete(2), "v": gym.spaces.MultiDiscrete([2, 3])}),
            "d": gym.spaces.MultiDiscrete([4, 2]) if config.get("arrays") else gym.spaces.Discrete(4),
        }
        self.config = config
        self.t = 0

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t = 0
        return self._obs(self.possible_agents), {"b": {"seed": seed}, "__common__": {"n": self.rng.integers(9)}}

    def step(self, actions):
        self.t += 1
        rng = self.rng
        agents = [self.possible_agents[i] for i in rng.permutation(4) if rng.random() < 0.8]
        kinds = [float, int, np.float32, np.int64, lambda x: np.array([x]), bool]
        rewards = {agent: kinds[rng.integers(6)](rng.integers(5)) for agent in agents}
        over = self.t == 12
        infos = {agent: {"sum": repr(actions.get(agent))} for agent in agents if rng.random() < 0.3}
        infos.update({agent: None for agent in agents if rng.random() < 0.1})
        flags = {agent: np.bool_(False) for agent in agents}
        return self._obs(agents), rewards, {**flags, "__all__": over}, {"__all__": np.False_}, infos

    def state(self):
        return np.arange(4) * self.t

    def _obs(self, agents):
        return {agent: self._one(agent) for agent in agents}

    def _one(self, agent):
        rng, t = self.rng, self.t
        if agent == 0:
            values = [1.5, rng.random(), t]
            return [values, np.array(values), np.array(values, np.float32)][rng.integers(3)]
        if agent == "b":
            x = rng.random((2, 2)) if t % 2 else rng.random((2, 2)).T
            return ({"n": int(rng.integers(5)), "x": x}, np.array([0, 1, t % 2], np.int8))
        if agent == "d":
            values = np.full(3, t, np.float32)
            return {"v": values, "text": str(t)} if self.config.get("text") else values
        return [int, np.int64, np.array][rng.integers(3)](rng.integers(7))
