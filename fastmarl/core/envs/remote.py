"""Proxy of an env in a worker process."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym

from fastmarl.core.objects.public import public


@dataclass
class EnvDescription:
    """Class, agents and spaces of an env in a worker.

    Attributes:
        env_class: Module and name of its class.
        possible_agents: Ids of all possible agents; empty means any id.
        named_agents: Ids under which its spaces are declared, for envs without `possible_agents`.
        spaces: (observation space, action space) of these agents.
        observation_space, action_space: Spaces shared by all agents, or None.
        state_space: Space of its global state, if recorded.
        supports_checkpoint: True if the env can save and restore its state.
    """

    env_class: tuple[str, str]
    possible_agents: list[Hashable]
    named_agents: list[Hashable]
    spaces: dict[Hashable, tuple[gym.Space, gym.Space]]
    observation_space: gym.Space | None
    action_space: gym.Space | None
    state_space: gym.Space | None
    supports_checkpoint: bool


class WorkerClient(Protocol):
    """The methods of a worker process that RemoteEnv uses."""

    @property
    def pid(self) -> int | None: ...

    def call(self, index: int, name: str, args: tuple, kwargs: dict[str, Any]) -> Any: ...

    def spaces(self, index: int, agent_id: Hashable) -> tuple[gym.Space, gym.Space]: ...


@public("fastmarl.envs")
class RemoteEnv:
    """Proxy of an env in a worker process, with its agents and spaces; `call()` runs any of its methods.

    Args:
        worker: The worker.
        index: Index of the env in the worker.
        description: Description of the env from the worker.
    """

    def __init__(self, worker: WorkerClient, index: int, description: EnvDescription):
        self._worker = worker
        self._index = index
        self._description = description
        self._asked: tuple[Hashable, tuple[gym.Space, gym.Space]] | None = None  # last requested agent and its spaces
        self.env_class = description.env_class
        self.possible_agents = description.possible_agents
        self.named_agents = description.named_agents
        self.observation_space = description.observation_space
        self.action_space = description.action_space
        self.state_space = description.state_space
        self.supports_checkpoint = description.supports_checkpoint

    def __repr__(self) -> str:
        return f"RemoteEnv({self.env_class[1]} in process {self._worker.pid})"

    @property
    def unwrapped(self) -> RemoteEnv:
        """This proxy, since the env lives in another process."""
        return self

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call the env's method `name`, or read its attribute `name`. Arguments and results are pickled.

        Raises:
            EnvWorkerError: If the worker has died. Errors raised by the env are propagated.
        """
        return self._worker.call(self._index, name, args, kwargs)

    def reset(self, *, seed: int | None = None) -> tuple[dict, dict]:
        """Start an episode that the runner does not record; `seed` may be None."""
        return self.call("reset", seed=seed)

    def get_state(self) -> Any:
        """Return the state of the env, which must support checkpoints."""
        return self.call("get_state")

    def set_state(self, state: Any) -> None:
        self.call("set_state", state)

    def state(self) -> Any:
        """Return the global state of the env."""
        return self.call("state")

    def render(self) -> Any:
        return self.call("render")

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return self._spaces(agent_id)[0]

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return self._spaces(agent_id)[1]

    def _spaces(self, agent_id: Hashable) -> tuple[gym.Space, gym.Space]:
        known = self._description.spaces
        if agent_id in known:
            return known[agent_id]
        if self._asked is None or self._asked[0] != agent_id:
            self._asked = agent_id, self._worker.spaces(self._index, agent_id)
        return self._asked[1]
