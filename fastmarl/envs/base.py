"""The multi-agent protocol, which is RLlib's, and what counts as an environment."""

from collections.abc import Hashable
from typing import Any

import gymnasium as gym

from fastmarl.envs.pettingzoo import ParallelPettingZooEnv
from fastmarl.errors import EnvCheckError


class MultiAgentEnv:
    """Base class for environments of several agents. An agent id may be any hashable.

    Agents come with their first observation and may leave at any step. Who is in the observation dict acts in the
    next step, and only they do.

    Attributes:
        possible_agents: ids of all agents that can ever appear. Empty: any id may appear.
        observation_spaces, action_spaces: gymnasium spaces by agent id.
    """

    possible_agents: list[Any] = []  # noqa: RUF012  (replaced by each env, never changed)
    observation_spaces: dict[Any, gym.Space] | None = None
    action_spaces: dict[Any, gym.Space] | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Begin an episode; returns (observations, infos), dicts by agent id."""
        raise NotImplementedError

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Take the actions of the agents that were observed last.

        Returns:
            (observations, rewards, terminateds, truncateds, infos), dicts by agent id that need not have all agents.
            terminateds must have "__all__", truncateds may: True ends the episode. An agent whose flag is True has
            ended; its observation in that step is its last. infos may have "__common__".
        """
        raise NotImplementedError

    def render(self) -> Any:
        """An image, text or None; as the env likes."""

    def close(self) -> None:
        """Give resources back."""

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return _space_of(self, "observation", agent_id)

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return _space_of(self, "action", agent_id)


def as_multi_agent_env(env: Any) -> Any:
    """The object to sample from: multi-agent envs as they are, PettingZoo's parallel envs in their adapter.

    RLlib's MultiAgentEnv is recognised by what it has, without importing Ray.

    Raises:
        EnvCheckError: anything else; says what is there and what to do.
    """
    if isinstance(env, MultiAgentEnv):
        return env
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        raise EnvCheckError(f"{env} is a turn-based PettingZoo AECEnv, which is not supported; if its agents can move "
                            f"at once, give pettingzoo.utils.aec_to_parallel(env)")  # fmt: skip
    if not (callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))):
        raise EnvCheckError(f"expected a multi-agent environment, got {env!r}, which has no reset() and step()")
    if callable(getattr(env, "observation_space", None)) and hasattr(env, "possible_agents"):
        return ParallelPettingZooEnv(env)
    if hasattr(env, "get_observation_space") or hasattr(env, "possible_agents"):
        return env
    raise EnvCheckError(f"{env!r} is an environment of one agent; expected a fastmarl.MultiAgentEnv, RLlib's "
                        f"MultiAgentEnv or a PettingZoo ParallelEnv")  # fmt: skip


def env_spaces(env: Any, agent_id: Hashable) -> tuple[gym.Space, gym.Space]:
    """An agent's (observation space, action space).

    Raises:
        EnvCheckError: the env doesn't say, or what it says is no gymnasium space.
    """
    spaces = []
    for kind in ("observation", "action"):
        getter = getattr(env, f"get_{kind}_space", None)
        space = getter(agent_id) if getter is not None else _space_of(env, kind, agent_id)
        if not isinstance(space, gym.Space):
            raise EnvCheckError(f"expected a gymnasium space as {kind} space of agent {agent_id!r}, got {space!r}")
        spaces.append(space)
    return spaces[0], spaces[1]


def _space_of(env: Any, kind: str, agent_id: Hashable) -> Any:
    """From `<kind>_spaces`, or `<kind>_space`: by agent id, or one for all."""
    spaces = getattr(env, f"{kind}_spaces", None)
    if spaces is not None and agent_id in spaces:
        return spaces[agent_id]
    space = getattr(env, f"{kind}_space", None)
    if isinstance(space, gym.spaces.Dict) and agent_id in space.spaces:
        return space.spaces[agent_id]
    if space is None:
        raise EnvCheckError(f"{type(env).__name__} has no {kind} space for agent {agent_id!r}; add it to "
                            f"{kind}_spaces")  # fmt: skip
    return space
