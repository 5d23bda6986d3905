"""Base class of multi-agent environments, as in RLlib, and lookup of agent spaces."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import gymnasium as gym

from fastmarl.core.errors import EnvCheckError
from fastmarl.core.objects.public import public


@public("fastmarl.envs")
class MultiAgentEnv:
    """Base class for environments with several agents. Agent ids may be any hashable objects.

    Agents join with their first observation and may leave at any step. Exactly the agents in the observation dict act
    in the next step.

    Attributes:
        possible_agents: List of the ids of all agents that may ever appear; its order may affect connectors and
            policies. A set is sorted. If empty, any id may appear.
        agents: Ids of the agents currently in the episode, for user code only; runners use the observation dicts.
        observation_spaces, action_spaces: Dicts of agent id -> Gymnasium space.
        observation_space, action_space: Alternatives to the dicts above: one space for all agents, or a Dict space
            keyed by agent id.
        state_space: Space of the global state. An env may define `state()` to return this state as an array, for
            centralised critics; see `EnvRunnerConfig.record_env_state`.
        supports_checkpoint: True if the class implements `get_state()` and `set_state()`, which a restored runner needs
            to continue in the middle of an episode. Other envs start a new episode.
    """

    possible_agents: list[Any] = []  # noqa: RUF012  (replaced by each env, never changed)
    agents: list[Any] = []  # noqa: RUF012
    observation_spaces: dict[Any, gym.Space] | None = None
    action_spaces: dict[Any, gym.Space] | None = None
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    state_space: gym.Space | None = None
    supports_checkpoint: bool = False

    @property
    def unwrapped(self) -> Any:
        """The env without its wrappers."""
        return self

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Start an episode.

        Args:
            seed: Seed for the env's random number generators; None leaves them unchanged.
            options: Env-specific options.

        Returns:
            (observations, infos), dicts keyed by agent id.
        """
        raise NotImplementedError

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Apply the actions of the agents observed last.

        Args:
            actions: Dict of agent id -> action.

        Returns:
            (observations, rewards, terminateds, truncateds, infos), dicts keyed by agent id; agents may be missing.
            terminateds must contain "__all__", and truncateds may; True ends the episode. An agent whose flag is True
            has finished: its observation in this step is its last. infos may contain "__common__".
        """
        raise NotImplementedError

    def get_state(self) -> Any:
        """Return the complete state of the env, including its random number generators.

        To be saved with a runner, it must consist of types supported by `fastmarl.checkpoint.save_state()`: nested
        dicts, lists and tuples of numbers, strings, None and arrays.
        """
        raise NotImplementedError

    def set_state(self, state: Any) -> None:
        """Restore a state from `get_state()` of this env or an identically constructed one.

        `reset()` has been called before, with any seed.
        """
        raise NotImplementedError

    def render(self) -> Any:
        """Return an image, text or None, depending on the env."""

    def close(self) -> None:
        """Release the resources of the env."""

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        """Return the observation space of the agent `agent_id`; raises EnvCheckError if it is unknown."""
        return _space_of(self, "observation", agent_id)

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        """Return the action space of the agent `agent_id`; raises EnvCheckError if it is unknown."""
        return _space_of(self, "action", agent_id)


def env_spaces(env: Any, agent_id: Hashable) -> tuple[gym.Space, gym.Space]:
    """Return the (observation space, action space) of an agent, whichever way the env declares them.

    Raises:
        EnvCheckError: If the env does not declare them, or they are not gymnasium spaces.
    """
    return space_of(env, "observation", agent_id), space_of(env, "action", agent_id)


def named_agents(env: Any) -> list[Any]:
    """Return the agent ids that key the spaces of an env without `possible_agents`; [] if spaces are not keyed by id.

    As in RLlib, the keys of a Dict space are taken as agent ids, unless `agents` lists other ids or the observation and
    action spaces have different keys. The Dict is then the space of a single agent.
    """
    by_id = getattr(env, "observation_spaces", None)
    if isinstance(by_id, dict) and by_id:
        return list(by_id)
    observation: Any = getattr(env, "observation_space", None)
    action: Any = getattr(env, "action_space", None)
    if not all(isinstance(space, gym.spaces.Dict | dict) for space in (observation, action)):
        return []
    ids = list(observation)
    is_of_others = not set(getattr(env, "agents", None) or ids) <= set(ids)
    return [] if is_of_others or set(ids) != set(action) else ids


def space_of(env: Any, kind: str, agent_id: Hashable) -> gym.Space:
    """Return the space of an agent; `kind` is "observation" or "action". See `env_spaces()`."""
    getter = getattr(env, f"get_{kind}_space", None)
    if getattr(getter, "__self__", env) is not env and _finds(env, kind, agent_id):
        getter = None  # the wrapper forwarded the getter of an inner env, which does not know the wrapper's spaces
    try:
        space = _space_of(env, kind, agent_id) if getter is None else getter(agent_id)
    except EnvCheckError:
        raise
    except Exception as error:
        raise EnvCheckError(f"{type(env).__name__}.get_{kind}_space({agent_id!r}) raised {error!r}; add a space for "
                            f"every agent to {kind}_spaces before the first reset()") from error  # fmt: skip
    if not isinstance(space, gym.Space):
        raise EnvCheckError(f"expected a gymnasium space as the {kind} space of agent {agent_id!r}, got "
                            f"{space!r:.200}; {_what_to_do(space, kind)}")  # fmt: skip
    return space


def _finds(env: Any, kind: str, agent_id: Hashable) -> bool:
    """Return True if the attributes of the env include a space for this agent."""
    try:
        _space_of(env, kind, agent_id)
    except EnvCheckError:
        return False
    return True


def _what_to_do(space: Any, kind: str) -> str:
    if type(space).__module__.partition(".")[0] == "gym":
        return "this space is from the old gym package; create it with gymnasium.spaces"
    return f"add a gymnasium space for this agent to {kind}_spaces"


def _space_of(env: Any, kind: str, agent_id: Hashable) -> Any:
    """Look up a space in `<kind>_spaces`, else in `<kind>_space`, which is keyed by agent id or shared by all."""
    spaces = getattr(env, f"{kind}_spaces", None)
    if spaces is not None and agent_id in spaces:
        return spaces[agent_id]
    space = getattr(env, f"{kind}_space", None)
    by_agent: Any = space.spaces if isinstance(space, gym.spaces.Dict) else space
    if isinstance(by_agent, dict) and agent_id in by_agent:
        return by_agent[agent_id]
    if space is None:
        raise EnvCheckError(f"{type(env).__name__} has no {kind} space for agent {agent_id!r}; add it to "
                            f"{kind}_spaces in the constructor, before the first reset()")  # fmt: skip
    return space
