"""An environment that plays what a test has written down, and a module that says it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from fastmarl.core.spaces.structs import flatten_struct

BOX = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
DISCRETE = gym.spaces.Discrete(3)


@dataclass
class Step:
    """The result of a step, or, with `obs` and `infos` alone, that of a reset.

    Attributes:
        obs: Observations by agent, or the agents alone, which then see the time: the env steps since the reset.
        rewards: By agent, or one for all that have acted.
        terminated, truncated: Agents, or True for the episode.
        infos: By agent.
    """

    obs: dict | Iterable = ()
    rewards: dict | float = field(default_factory=dict)
    terminated: Iterable | bool = ()
    truncated: Iterable | bool = ()
    infos: dict = field(default_factory=dict)


class Scripted(fastmarl.MultiAgentEnv):
    """Plays episodes in turn, over and over.

    Args:
        episodes: Each a list of what `reset()` returns and then each `step()`; the last is played until a reset. `"ab"`
            stands for `Step("ab")`. A tuple is returned unchanged, an error is raised.
        space, action_space: One for all agents, or by agent.
        see: (agent, time) -> what it observes at that time; by default this fills its space.
        agents: Ids; by default those in the episodes.

    Attributes:
        actions, seeds: Those received.
        n_closed: Number of calls of `close()`.
    """

    def __init__(self, *episodes: list, space: Any = BOX, action_space: Any = DISCRETE,
                 see: Callable | None = None, agents: Iterable | None = None):  # fmt: skip
        as_they_are = Step, tuple, Exception
        self.episodes = [[e if isinstance(e, as_they_are) else Step(e) for e in episode] for episode in episodes]
        seen = (agent for episode in self.episodes for e in episode if isinstance(e, Step) for agent in e.obs)
        self.possible_agents = list(dict.fromkeys(seen) if agents is None else agents)
        self.observation_spaces, self.action_spaces = (
            spaces if isinstance(spaces, dict) else dict.fromkeys(self.possible_agents, spaces)
            for spaces in (space, action_space)
        )
        self.see = self._time if see is None else see
        self.actions: list[dict] = []
        self.seeds: list[int | None] = []
        self.n_closed = self.t = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple:
        self.seeds.append(seed)
        self.t = 0
        step = self._next()
        return step if isinstance(step, tuple) else (self._obs(step), dict(step.infos))

    def step(self, actions: dict) -> tuple:
        self.actions.append(actions)
        self.t += 1
        step = self._next()
        if isinstance(step, tuple):
            return step
        rewards = step.rewards if isinstance(step.rewards, dict) else dict.fromkeys(actions, step.rewards)
        return self._obs(step), dict(rewards), _flags(step.terminated), _flags(step.truncated), dict(step.infos)

    def close(self) -> None:
        self.n_closed += 1

    def _next(self) -> Step | tuple:
        episode = self.episodes[(len(self.seeds) - 1) % len(self.episodes)]
        step = episode[min(self.t, len(episode) - 1)]
        if isinstance(step, Exception):
            raise type(step)(*step.args)  # a new one: those who catch it add notes
        return step

    def _obs(self, step: Step) -> dict:
        if isinstance(step.obs, dict):
            return dict(step.obs)
        return {agent: self.see(agent, self.t) for agent in step.obs}

    def _time(self, agent: Any, t: int) -> np.ndarray:
        space = self.observation_spaces[agent]
        return np.full(space.shape, t, space.dtype)


def _flags(ended: Iterable | bool) -> dict:
    return {"__all__": ended} if isinstance(ended, bool) else {**dict.fromkeys(ended, True), "__all__": False}


def scripted(*episodes: list, **options: Any) -> Callable:
    """Make an `env` for a runner's config, whose envs all play these episodes; see `Scripted`."""
    return lambda config: Scripted(*episodes, **options)


def counting(num_agents: int = 2, episode_length: int = 10, info: dict | None = None) -> list:
    """The episode of a CountingEnv: all agents are seen and rewarded with 1 in each step, which may give them infos."""
    agents = [f"agent_{i}" for i in range(num_agents)]
    step = Step(agents, 1.0, infos={} if info is None else dict.fromkeys(agents, info))
    return [agents, *[step] * (episode_length - 1), replace(step, truncated=True)]


def sine(agent: str, t: int) -> np.ndarray:
    return np.sin(np.full(4, t + int(agent[-1]), np.float32))


def sines(info: dict | None = None, **options: Any) -> Callable:
    """Make an `env` of three agents and 7 steps whose observations differ by agent and time."""
    return scripted(counting(3, 7, info), see=sine, **options)


class Says(torch.nn.Module):
    """Has outputs by name: nested numbers, the same for each row, or a function of the observations.

    Attributes:
        batch_sizes: Those of all calls.
    """

    def __init__(
        self, observation_space: gym.Space | None = None, action_space: gym.Space | None = None, **outputs: Any
    ):
        super().__init__()
        self.observation_space, self.action_space, self.outputs = observation_space, action_space, outputs
        self.batch_sizes: list[int] = []

    def forward(self, batch: dict) -> dict:
        obs = batch["obs"]
        self.batch_sizes.append(n := len(flatten_struct(obs)[0][1]))
        return {name: said(obs) if callable(said) else _rows(said, n) for name, said in self.outputs.items()}


def _rows(said: Any, n: int) -> Any:
    if isinstance(said, dict):
        return {name: _rows(part, n) for name, part in said.items()}
    if isinstance(said, tuple):
        return tuple(_rows(part, n) for part in said)
    return torch.as_tensor(said).expand(n, *np.shape(said))
