"""Small environments, each with one thing that is hard to record."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

import fastmarl

OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)


class ClockEnv(fastmarl.MultiAgentEnv):
    """Observations are the number of steps so far; subclasses define observations, rewards and ends by agent."""

    length = 10
    possible_agents: list = ["a0", "a1"]  # noqa: RUF012

    def __init__(self, config: Any = None):
        super().__init__()
        self.possible_agents = list(type(self).possible_agents)
        self.agents = list(self.possible_agents)
        self.observation_spaces = dict.fromkeys(self.possible_agents, OBS_SPACE)
        self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(3))
        self.received: list[dict] = []
        self.t = 0

    def sees(self, t: int) -> list:
        return self.possible_agents

    def pays(self, t: int) -> dict:
        return {}

    def ends(self, t: int) -> list:
        return []

    def infos(self, t: int) -> dict:
        return {}

    def observe(self) -> dict:
        return {agent: np.full(4, self.t, np.float32) for agent in self.sees(self.t)}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.t = 0
        return self.observe(), self.infos(0)

    def step(self, action_dict: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.received.append(dict(action_dict))
        self.t += 1
        terminateds = dict.fromkeys(self.ends(self.t), True) | {"__all__": self.t == self.length}
        return self.observe(), self.pays(self.t), terminateds, {"__all__": False}, self.infos(self.t)


class Echo(torch.nn.Module):
    """Acts 0, 1 or 2 by the clock, and keeps the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_sizes: list[int] = []

    def forward(self, batch: dict) -> dict:
        self.batch_sizes.append(len(batch["obs"]))
        return {"actions": batch["obs"][:, 0].to(torch.int64) % 3}


class TurnsEnv(ClockEnv):
    """The agent that acts at t receives t, the other one -0.5 in the same step."""

    length = 21

    def sees(self, t):
        return self.possible_agents if t == self.length else [f"a{t % 2}"]

    def pays(self, t):
        return {f"a{(t - 1) % 2}": t, f"a{t % 2}": -0.5}


class RespawnEnv(ClockEnv):
    """a1 ends at 3 and is back at 6."""

    def sees(self, t):
        return ["a0", "a1"] if t <= 3 or t >= 6 else ["a0"]

    def ends(self, t):
        return ["a1"] if t == 3 else []

    def infos(self, t):
        return {agent: {"t": t} for agent in self.sees(t)}


class MixedClocksEnv(ClockEnv):
    """a0 acts at every fifth tick, a1 at all others."""

    length = 40

    def sees(self, t):
        return ["a0"] if t % 5 == 0 else ["a1"]


class StepCounter(fastmarl.RLModule):
    """Its memory is how often an agent has acted; what it found there is recorded as "count"."""

    def get_initial_state(self):
        return {"h": np.zeros(2, np.float32), "nested": {"c": np.zeros((), np.float32)}}

    def _forward(self, batch, **kwargs):
        state = batch["state_in"]
        actions = batch["obs"][..., 0].to(torch.int64) % 3
        assert actions.shape == (len(state["h"]), 1), "observations of modules with memory have a time axis"
        return {
            "actions": actions,
            "count": torch.stack([state["h"][:, 1], state["nested"]["c"]], dim=-1)[:, None],
            "state_out": {"h": state["h"] + 1, "nested": {"c": state["nested"]["c"] + 1}},
        }
