"""Adapter for PettingZoo ParallelEnvs, and the base class it shares with the AECEnv adapter."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.resumable import ResumableAdapter
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.errors.checks import in_order, plain_seed
from fastmarl.core.objects.public import public


class PettingZooAdapter(ResumableAdapter):
    """Base class of the adapters for PettingZoo's ParallelEnv and AECEnv.

    Args:
        env: The PettingZoo env; `unwrapped` is the env without its wrappers.
    """

    def __init__(self, env: Any):
        self.env = env
        self.possible_agents: list[Any] = in_order(
            "possible_agents", getattr(env, "possible_agents", ()), EnvCheckError
        )
        self._ended: set[Any] = set()  # finished agents of this episode that are still in `agents` of the env

    @property
    def agents(self) -> list[Any]:
        """Ids of the agents currently in the episode."""
        return self.env.agents

    @property
    def state_space(self) -> gym.Space | None:
        """Space of `state()`, if the env has one."""
        return getattr(self.env, "state_space", None)

    def state(self) -> np.ndarray:
        """Return the global state of the env, for centralised critics."""
        return self.env.state()

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self.env.observation_space(agent_id)

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self.env.action_space(agent_id)

    def get_state(self) -> Any:
        """Return the state of the env and the finished agents."""
        return {"env": self.env.get_state(), "ended": list(self._ended)}

    def set_state(self, state: Any) -> None:
        self.env.set_state(state["env"])
        self._ended = set(state["ended"])


@public("fastmarl.envs")
class ParallelPettingZooEnv(PettingZooAdapter):
    """Adapts a PettingZoo ParallelEnv, adding `__all__` flags if the env does not return them.

    An episode is over when all agents in the env's `agents` have finished, whether or not the env has removed them. It
    counts as truncated if any agent was truncated in that last step, otherwise as terminated. The dicts returned by the
    env are not modified. An agent that disappears from `agents` without a flag stays unfinished until the episode ends.

    Args:
        env: A PettingZoo ParallelEnv; `unwrapped` is the env without its wrappers.
    """

    @staticmethod
    def adapts(env: Any) -> bool:
        """Return True if `env` has the methods of a ParallelEnv."""
        methods = ("reset", "step", "observation_space", "action_space")
        return all(callable(getattr(env, name, None)) for name in methods)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        result = self.env.reset(seed=plain_seed(seed), options=options)
        self._ended = set()
        return result

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Step the env with `actions`, adding `__all__` to terminateds and, if it is True, to truncateds."""
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        is_flagged = any(terminateds.values()) or any(truncateds.values())
        if is_flagged or not self.env.agents or (self._ended and not self._ended.isdisjoint(obs)):
            return obs, rewards, *self._ends(obs, terminateds, truncateds), infos
        return obs, rewards, {**terminateds, "__all__": False}, truncateds, infos

    def _ends(self, obs: dict, terminateds: dict, truncateds: dict) -> tuple[dict, dict]:
        """Record the agents that finish in this step; return the flags with `__all__` added."""
        flagged = {agent for flags in (terminateds, truncateds) for agent, flag in flags.items() if flag}
        if "__all__" in flagged:
            return {"__all__": False, **terminateds}, truncateds
        self._ended -= obs.keys() - flagged  # agents observed without a flag take part again
        ending = flagged - self._ended
        self._ended = (self._ended | flagged).intersection(agents := self.env.agents)
        # If the env itself returns "__all__": False, an episode without active agents continues while `agents` is not
        # empty.
        if agents and ("__all__" in terminateds or len(self._ended) < len(agents)):
            return {"__all__": False, **terminateds}, truncateds
        is_truncated = any(truncateds.get(agent) for agent in ending)
        return {**terminateds, "__all__": not is_truncated}, {**truncateds, "__all__": is_truncated}
