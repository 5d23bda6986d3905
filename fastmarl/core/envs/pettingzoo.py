"""PettingZoo's ParallelEnv in the multi-agent protocol, and what its AECEnv has in common with it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.resumable import ResumableAdapter
from fastmarl.core.public import public


class PettingZooAdapter(ResumableAdapter):
    """What the adapters of both kinds of PettingZoo envs share.

    Args:
        env: the PettingZoo env; `unwrapped` is it without its wrappers.
    """

    def __init__(self, env: Any):
        self.env = env
        self.possible_agents: list[Any] = list(getattr(env, "possible_agents", ()))
        self._ended: set[Any] = set()  # agents that have ended in this episode and are listed in the env's `agents`

    @property
    def agents(self) -> list[Any]:
        """Ids of those that take part now."""
        return self.env.agents

    @property
    def state_space(self) -> gym.Space | None:
        """The space of `state()`, if the env has one."""
        return getattr(self.env, "state_space", None)

    def state(self) -> np.ndarray:
        """The env's global state, for central critics."""
        return self.env.state()

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self.env.observation_space(agent_id)

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self.env.action_space(agent_id)

    def get_state(self) -> Any:
        """The env's, and who has ended."""
        return {"env": self.env.get_state(), "ended": list(self._ended)}

    def set_state(self, state: Any) -> None:
        self.env.set_state(state["env"])
        self._ended = set(state["ended"])


@public("fastmarl.envs")
class ParallelPettingZooEnv(PettingZooAdapter):
    """Adds the `__all__` flags where the env has none of its own: an episode is over when no agent is left, that is
    when all agents in the env's `agents` have ended, whether or not the env has removed them.

    It is then truncated if some agent was truncated in that last step, else terminated. The env's own dicts stay as
    they are. An agent that vanishes from `agents` without a flag waits until the end of the episode.

    Args:
        env: a PettingZoo ParallelEnv; `unwrapped` is it without its wrappers.
    """

    @staticmethod
    def adapts(env: Any) -> bool:
        """Whether this is such an env."""
        methods = ("reset", "step", "observation_space", "action_space")
        return all(callable(getattr(env, name, None)) for name in methods)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        result = self.env.reset(seed=seed, options=options)
        self._ended = set()
        return result

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """As the env's own, with `__all__` in terminateds, and in truncateds where it is True."""
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        is_flagged = any(terminateds.values()) or any(truncateds.values())
        if is_flagged or not self.env.agents or (self._ended and not self._ended.isdisjoint(obs)):
            return obs, rewards, *self._ends(obs, terminateds, truncateds), infos
        return obs, rewards, {**terminateds, "__all__": False}, truncateds, infos

    def _ends(self, obs: dict, terminateds: dict, truncateds: dict) -> tuple[dict, dict]:
        """Note which agents end in this step; returns the flags with `__all__`."""
        flagged = {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag}
        if "__all__" in flagged:
            return {"__all__": False, **terminateds}, truncateds
        self._ended -= obs.keys() - flagged  # observed without a flag: they take part again
        ending = flagged - self._ended
        self._ended = (self._ended | flagged).intersection(agents := self.env.agents)
        # "__all__": False of the env's own keeps an episode without living agents open, as long as some are listed.
        if agents and ("__all__" in terminateds or len(self._ended) < len(agents)):
            return {"__all__": False, **terminateds}, truncateds
        is_truncated = any(truncateds.get(agent) for agent in ending)
        return {**terminateds, "__all__": not is_truncated}, {**truncateds, "__all__": is_truncated}
