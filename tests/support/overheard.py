"""Recorders of an env's results and actions, and policies that are called with them again."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.registry import env_creator


class Tick(NamedTuple):
    """The results of an env, and the actions that followed; None if the episode was over."""

    is_reset: bool
    obs: dict[Any, Any]
    rewards: dict[Any, float]
    infos: dict[Any, dict]
    sent: dict[Any, Any] | None


class Overheard:
    """Makes envs as `EnvRunnerConfig(env=...)` takes them, and listens to them.

    Attributes:
        envs: of each env that was made, its ticks since `clear()`.
    """

    def __init__(self, env: Any):
        self._create = env_creator(env)
        self.envs: list[list[Tick]] = []

    def __call__(self, config: Any) -> Any:
        env, ticks = as_multi_agent_env(self._create(config)), list[Tick]()
        reset, step = env.reset, env.step

        def overheard_reset(**options: Any) -> Any:
            obs, infos = reset(**options)
            ticks.append(Tick(True, copy.deepcopy(obs), {}, copy.deepcopy(infos), None))
            return obs, infos

        def overheard_step(actions: dict) -> Any:
            if ticks:
                ticks[-1] = ticks[-1]._replace(sent=copy.deepcopy(actions))
            said = step(actions)
            ticks.append(Tick(False, *copy.deepcopy((said[0], said[1], said[4])), None))
            return said

        env.reset, env.step = overheard_reset, overheard_step
        self.envs.append(ticks)
        return env

    def clear(self) -> None:
        for ticks in self.envs:
            ticks.clear()

    @property
    def n_sent(self) -> int:
        """The number of actions that were sent."""
        return sum(len(tick.sent or {}) for ticks in self.envs for tick in ticks)


class Wander(fastmarl.MultiAgentEnv):
    """Three agents, some of which rest in every step; observations and rewards are random.

    Args:
        config: `observation_space`, `action_space`; `masks`: "infos" for masks there. Masks in observations are drawn
            like the rest of them, but one choice (of each part) is always legal.
    """

    possible_agents = ("a", "b", "c")

    def __init__(self, config: Any):
        self.observation_space, self.action_space = config["observation_space"], config["action_space"]
        self._masks = config.get("masks")
        self.rng = np.random.default_rng(config.vector_index)
        self.t = self.length = 0

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.t, self.length = 0, int(self.rng.integers(1, 30))
        self.observation_space.seed(int(self.rng.integers(2**31)))
        return self._said()

    def step(self, actions):
        self.t += 1
        obs, infos = self._said()
        rewards = {agent: float(self.rng.normal()) for agent in obs}
        return obs, rewards, {"__all__": self.t >= self.length}, {}, infos

    def _said(self):
        agents = [agent for agent in self.possible_agents if self.rng.random() < 0.8] or ["b"]
        obs = {agent: self._allowing(self.observation_space.sample()) for agent in agents}
        infos = {}
        if self._masks == "infos":
            infos = {agent: {"action_mask": self._mask()} for agent in agents if self.rng.random() < 0.7}
        return obs, infos

    def _allowing(self, obs):
        if isinstance(obs, dict) and "action_mask" in obs:
            obs["action_mask"] = self._mask().astype(obs["action_mask"].dtype)
        return obs

    def _mask(self):
        space = self.action_space
        sizes = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else space.nvec.tolist()
        parts = [self.rng.integers(2, size=size) for size in sizes]
        for part in parts:
            part[self.rng.integers(len(part))] = 1
        return np.concatenate(parts)


def asked_again(ticks: list[Tick], ask: Callable[[Tick], dict], reset: Callable[[], None]) -> Iterator[tuple]:
    """(action that the env was sent, action that is given now), of every tick and agent that acted."""
    for tick in ticks:
        if tick.is_reset:
            reset()
        if tick.sent is not None:
            given = ask(tick)
            for agent, action in tick.sent.items():
                yield action, given[agent]


def in_batches(policy: Any, **options: Any) -> Callable[[Tick], dict]:
    return lambda tick: policy.act_batch(tick.obs, rewards=tick.rewards, infos=tick.infos, **options)


def one_by_one(policy: Any, **options: Any) -> Callable[[Tick], dict]:
    def ask(tick: Tick) -> dict:
        return {
            agent: policy.act(
                obs,
                agent,
                reward=tick.rewards.get(agent, 0.0),
                action_mask=tick.infos.get(agent, {}).get("action_mask"),
                **options,
            )
            for agent, obs in tick.obs.items()
        }

    return ask


class Carried:
    """Asks one by one, and carries the agents' states itself."""

    def __init__(self, policy: Any):
        self.policy = policy
        self.states: dict[Any, Any] = {}

    def __call__(self, tick: Tick) -> dict:
        actions = {}
        for agent, obs in tick.obs.items():
            mask, state = tick.infos.get(agent, {}).get("action_mask"), self.states.get(agent, {})
            reward = tick.rewards.get(agent, 0.0)
            actions[agent], self.states[agent] = self.policy.act(
                obs, agent, reward=reward, action_mask=mask, state=state
            )
        return actions
