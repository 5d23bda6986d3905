"""Adapters for Gymnasium envs with one Tuple or Dict space entry per agent."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.resumable import ResumableAdapter
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.errors.checks import plain_seed
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import Leaf, RowLayout
from fastmarl.core.spaces.values import converted

# An env with one of these attributes needs no adapter.
OF_MULTI_AGENT_ENVS = ("possible_agents", "get_observation_space", "observation_spaces")


@public("fastmarl.envs")
class JointGymnasiumEnv(ResumableAdapter):
    """Base class of both adapters: each step takes a joint action of all agents, whose set is fixed.

    The env uses dicts keyed by agent, unless a subclass overrides this.

    A flag shared by all agents ends the episode. With per-agent flags, agents finish one by one, and the episode ends
    when the last one finishes; it counts as truncated if any agent was truncated in that last step, otherwise as
    terminated.

    A finished agent is not observed again. The env still requires an action for it: the first one of a Discrete space,
    zeros (clipped to the bounds) in numeric spaces, and otherwise a random sample. Nonzero rewards that such an agent
    still receives are returned; the option `late_rewards` controls how they are handled.

    Args:
        env: A gymnasium.Env, possibly in wrappers; `unwrapped` is the env without them. By default, `gym.make` adds a
            checker, which warns that rewards and flags are not scalars; `gym.make(..., disable_env_checker=True)`
            avoids this.
        observation_spaces: Dict of agent id -> observation space.
        action_spaces: Dict of agent id -> action space.
    """

    def __init__(self, env: Any, observation_spaces: dict[Any, gym.Space], action_spaces: dict[Any, gym.Space]):
        self.env = env
        self.possible_agents: list[Any] = list(observation_spaces)
        self._observation_spaces = observation_spaces
        self._action_spaces = action_spaces
        self._ended: dict[Any, Any] = {}  # finished agent -> the action that the env receives for it

    @property
    def agents(self) -> list[Any]:
        """Ids of the agents that have not finished."""
        return [agent for agent in self.possible_agents if agent not in self._ended]

    @property
    def state_space(self) -> gym.Space | None:
        """Space of `state()`, if the env has one."""
        return getattr(self.unwrapped, "state_space", None)

    def state(self) -> np.ndarray:
        """Return the global state for centralised critics, if the env has a `state()`."""
        return self.unwrapped.state()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        obs, info = self.env.reset(seed=plain_seed(seed), options=options)
        self._ended = {}
        return self._observations(obs), self._infos(info)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Apply the actions of all unfinished agents; see MultiAgentEnv.

        Raises:
            ValueError: If an action is missing.
            EnvCheckError: If the env returned values for the wrong number of agents.
        """
        joint_action = self._joint_action({**actions, **self._ended} if self._ended else actions)
        obs, rewards, terminated, truncated, info = self.env.step(joint_action)
        obs, infos = self._observations(obs), self._infos(info)
        rewards = self._by_agent(rewards) if self._is_by_agent(rewards) else dict.fromkeys(self.agents, rewards)
        if self._ended:
            obs, infos = self._without_ended(obs), self._without_ended(infos)
            rewards = {agent: reward for agent, reward in rewards.items() if reward or agent not in self._ended}
        if self._is_by_agent(terminated) or self._is_by_agent(truncated):
            return obs, rewards, *self._end_agents(self._flags(terminated), self._flags(truncated)), infos
        return obs, rewards, {"__all__": bool(terminated)}, {"__all__": bool(truncated)}, infos

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self._observation_spaces[agent_id]

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self._action_spaces[agent_id]

    def get_state(self) -> Any:
        """Return the state of the env and the finished agents."""
        return {"env": self.env.get_state(), "ended": dict(self._ended)}

    def set_state(self, state: Any) -> None:
        self.env.set_state(state["env"])
        self._ended = dict(state["ended"])

    def _flags(self, flag: Any) -> dict[Any, bool]:
        """Return agent -> flag, without agents that finished earlier, or {"__all__": flag} for a shared flag."""
        if not self._is_by_agent(flag):
            return {"__all__": bool(flag)}
        return {agent: bool(value) for agent, value in self._by_agent(flag).items() if agent not in self._ended}

    def _end_agents(self, terminateds: dict[Any, bool], truncateds: dict[Any, bool]) -> tuple[dict, dict]:
        """Record the agents that finish in this step; return both dicts of flags with "__all__" added."""
        if any(terminateds.values()) or any(truncateds.values()):
            for agent in self.agents:
                if terminateds.get(agent) or truncateds.get(agent):
                    self._ended[agent] = _idle_action(self._action_spaces[agent])
        is_over = len(self._ended) == len(self.possible_agents)
        is_truncated = is_over and any(truncateds.values())
        terminateds.setdefault("__all__", is_over and not is_truncated)
        truncateds.setdefault("__all__", is_truncated)
        return terminateds, truncateds

    def _without_ended(self, values: dict) -> dict:
        return {agent: value for agent, value in values.items() if agent not in self._ended}

    def _observations(self, obs: Any) -> dict:
        return self._by_agent(obs)

    def _by_agent(self, values: Any) -> dict:
        """Convert the env's container of values to a dict of agent id -> value."""
        return values

    def _is_by_agent(self, value: Any) -> bool:
        """Return True if `value` is a container with one value per agent, False if it is shared by all."""
        return isinstance(value, dict)

    def _joint_action(self, actions: dict) -> Any:
        """Convert the actions of all agents to the container that the env expects."""
        return actions

    def _infos(self, info: dict) -> dict[Any, dict]:
        raise NotImplementedError


@public("fastmarl.envs")
class TupleGymnasiumEnv(JointGymnasiumEnv):
    """Adapts an env whose spaces are Tuples with one entry per agent.

    Examples are `gym.make("lbforaging:Foraging-8x8-2p-3f-v3")` and `gym.make("rware:rware-tiny-2ag-v2")`.

    Agents are numbered 0, 1, ... in the order of the spaces. Observations and rewards are tuples, lists or arrays with
    one entry per agent; flags likewise, or a single bool. A single reward is a team reward, which each active agent
    receives. The env receives a tuple of actions. A non-empty info becomes `infos["__common__"]`.

    Args:
        env: See JointGymnasiumEnv.
    """

    def __init__(self, env: Any):
        super().__init__(env, dict(enumerate(env.observation_space)), dict(enumerate(env.action_space)))

    @staticmethod
    def adapts(env: Any) -> bool:
        """Return True if `env` has Tuple spaces of equal length."""
        return _has_spaces(env, gym.spaces.Tuple) and len(env.observation_space) == len(env.action_space) > 0

    def _by_agent(self, values: Any) -> dict[int, Any]:
        if len(values) != len(self.possible_agents):
            raise EnvCheckError(f"expected {len(self.possible_agents)} values, one per agent, from "
                                f"{type(self.unwrapped).__name__}, got {values!r:.200}")  # fmt: skip
        return dict(enumerate(values))

    def _is_by_agent(self, value: Any) -> bool:
        return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)

    def _joint_action(self, actions: dict) -> tuple:
        try:
            return tuple([actions[agent] for agent in self.possible_agents])
        except KeyError:
            raise ValueError(f"expected actions of agents {self.agents}, got actions of {list(actions)}") from None

    def _infos(self, info: dict) -> dict[Any, dict]:
        return {"__common__": info} if info else {}


@public("fastmarl.envs")
class DictGymnasiumEnv(JointGymnasiumEnv):
    """Adapts an env whose spaces are Dicts with one entry per agent, keyed by integer.

    An example is `gym.make("multigrid.envs:MultiGrid-Empty-8x8-v0", agents=2)`.

    Observations are dicts keyed by agent; rewards and flags are also dicts, or single values shared by all agents.
    Flags may contain "__all__". An info with keys other than agent ids becomes `infos["__common__"]`.

    Text in an agent's Dict observation whose space subclasses MultiDiscrete, such as a multigrid mission, is converted
    to the integers of that MultiDiscrete.

    Args:
        env: See JointGymnasiumEnv.
    """

    def __init__(self, env: Any):
        super().__init__(env, dict(env.observation_space.spaces), dict(env.action_space.spaces))
        self._info_keys = {*self.possible_agents, "__common__"}
        self._texts: dict[Any, dict[str, Leaf]] = {}  # agent -> key -> leaf of a text space
        for agent, space in self._observation_spaces.items():
            if isinstance(space, gym.spaces.Dict) and (numbers := _numbered_texts(space)):
                self._texts[agent] = {key: RowLayout(part).leaves[0] for key, part in numbers.items()}
                self._observation_spaces[agent] = gym.spaces.Dict({**space.spaces, **numbers})

    @staticmethod
    def adapts(env: Any) -> bool:
        """Return True if `env` has Dict spaces with the same integer keys."""
        if not _has_spaces(env, gym.spaces.Dict):
            return False
        agents = env.observation_space.keys()
        return bool(agents) and agents == env.action_space.keys() and all(isinstance(agent, int) for agent in agents)

    def _observations(self, obs: Any) -> dict:
        if not self._texts:
            return obs
        obs = dict(obs)
        for agent, texts in self._texts.items():
            if agent in obs:
                obs[agent] = observation = dict(obs[agent])
                for key, leaf in texts.items():
                    observation[key] = converted(np.asarray(observation[key]), leaf.dtype, leaf.shape)
        return obs

    def _infos(self, info: dict) -> dict[Any, dict]:
        if info.keys() <= self._info_keys:
            return dict(info)  # a plain dict, as `info` may be a defaultdict
        return {"__common__": info}


def _has_spaces(env: Any, kind: type) -> bool:
    """Return True for a Gymnasium env with spaces of this kind that does not implement the protocol itself."""
    if not isinstance(env, gym.Env) or any(hasattr(env, name) for name in OF_MULTI_AGENT_ENVS):
        return False
    return all(isinstance(getattr(env, name, None), kind) for name in ("observation_space", "action_space"))


def _numbered_texts(space: gym.spaces.Dict) -> dict[str, gym.spaces.MultiDiscrete]:
    """Return key -> plain MultiDiscrete for the entries whose space is a subclass of MultiDiscrete."""
    return {
        key: gym.spaces.MultiDiscrete(part.nvec, dtype=part.nvec.dtype.type, start=part.start)
        for key, part in space.spaces.items()
        if isinstance(part, gym.spaces.MultiDiscrete) and type(part) is not gym.spaces.MultiDiscrete
    }


def _idle_action(space: gym.Space) -> Any:
    """Return the action to send to the env for a finished agent."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _idle_action(part) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_idle_action(part) for part in space.spaces)
    if isinstance(space, gym.spaces.Discrete):
        return int(space.start)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start.astype(space.dtype)
    if isinstance(space, gym.spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    if isinstance(space, gym.spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype)
    return space.sample()
