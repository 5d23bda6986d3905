"""An env that writes down what it said, agent by agent, in the form that episodes should have it."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.base import MultiAgentEnv, env_spaces
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.masks import action_mask


@dataclass
class AgentLog:
    """One agent's stay in one episode: an action between each two observations, and its reward."""

    observations: list[bytes]
    rewards: list[float]
    """Sums by observation, until the next one."""
    actions: list[Any] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False


@dataclass
class EpisodeLog:
    """The log of one episode."""

    agents: dict[Hashable, AgentLog] = field(default_factory=dict)
    early: dict[Hashable, float] = field(default_factory=dict)
    """Received before the first observation."""
    env_t: int = 0
    terminated: bool = False
    truncated: bool = False


class Watched(MultiAgentEnv):
    """Any multi-agent env; `episodes` lists its episodes from the first reset on."""

    def __init__(self, env: Any):
        self.env = env
        self.possible_agents = env.possible_agents
        self.spaces = {agent: env_spaces(env, agent) for agent in env.possible_agents}
        self.layouts = {agent: RowLayout(space, keep_float64=False) for agent, (space, _) in self.spaces.items()}
        self.episodes: list[EpisodeLog] = []

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self.spaces[agent_id][0]

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self.spaces[agent_id][1]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        obs, infos = self.env.reset(seed=seed, options=options)
        self.log = EpisodeLog({agent: AgentLog([self.digest(agent, obs[agent])], [0.0]) for agent in obs})
        self.episodes.append(self.log)
        self.last = obs, infos
        return obs, infos

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        for agent, action in actions.items():
            assert self.is_legal(agent, action), f"{agent}: {action} is illegal"
            self.log.agents[agent].actions.append(action)
        result = self.env.step(actions)
        obs, rewards, terminateds, truncateds, infos = result
        self.log.env_t += 1
        self._pay(rewards)
        self._flag(terminateds, truncateds)
        self._observe(obs, terminateds, truncateds)
        self.last = obs, infos
        return result

    def _pay(self, rewards: dict) -> None:
        for agent, reward in rewards.items():
            if agent in self.log.agents:
                self.log.agents[agent].rewards[-1] += float(reward)
            else:
                self.log.early[agent] = self.log.early.get(agent, 0.0) + float(reward)

    def _flag(self, terminateds: dict, truncateds: dict) -> None:
        log = self.log
        log.terminated, log.truncated = bool(terminateds["__all__"]), bool(truncateds.get("__all__"))
        for agent, of_agent in log.agents.items():
            if not (of_agent.terminated or of_agent.truncated):
                own = bool(terminateds.get(agent)), bool(truncateds.get(agent))
                of_agent.terminated, of_agent.truncated = own if any(own) else (log.terminated, log.truncated)

    def _observe(self, obs: dict, terminateds: dict, truncateds: dict) -> None:
        for agent, of_agent in self.log.agents.items():
            ends_now = len(of_agent.actions) == len(of_agent.observations) and (
                of_agent.terminated or of_agent.truncated
            )
            if agent in obs or ends_now:  # who ends unobserved has its last observation once more
                digest = self.digest(agent, obs[agent]) if agent in obs else of_agent.observations[-1]
                of_agent.observations.append(digest)
                of_agent.rewards.append(0.0)
        ended = self.log.terminated or self.log.truncated
        for agent in obs.keys() - self.log.agents.keys():
            if not (ended or terminateds.get(agent) or truncateds.get(agent)):
                early = self.log.early.pop(agent, 0.0)
                self.log.agents[agent] = AgentLog([self.digest(agent, obs[agent])], [early])

    def is_legal(self, agent: Hashable, action: Any) -> bool:
        obs, infos = self.last
        space, mask = self.spaces[agent][1], action_mask(obs.get(agent), infos.get(agent))
        if mask is not None and isinstance(space, gym.spaces.Discrete):
            return bool(np.ravel(mask)[action - space.start])
        return space.contains(action)

    def digest(self, agent: Hashable, observation: Any) -> bytes:
        """Its leaves' bytes, in the space's dtypes, float64 as float32."""
        leaves = []
        for leaf in self.layouts[agent].leaves:
            value = observation
            for key in leaf.path:
                value = value[key]
            leaves.append(repr(value).encode() if leaf.dtype == object else np.asarray(value, leaf.dtype).tobytes())
        return b"|".join(leaves)

    def close(self) -> None:
        self.env.close()
