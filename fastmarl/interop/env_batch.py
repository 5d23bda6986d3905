"""Single multi-agent envs as one batch, whose results are arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.envs.form import check_reset_result, check_step_result
from fastmarl.core.errors import ObservationError, UnknownAgentError, shown
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.values import can_hold, described

ALL, GROUP = "__all__", "agents"


class EnvBatch(ArrayEnv):
    """Steps single envs one after the other; those whose episode is over are left out until they are reset.

    Args:
        envs: Multi-agent envs, see `fastmarl.envs.MultiAgentEnv`.
        agents: Ids of all agents that may appear.
        observation_space, action_space: Spaces of each agent.
    """

    def __init__(
        self, envs: Sequence[Any], agents: Sequence[Hashable], observation_space: gym.Space, action_space: gym.Space
    ):
        super().__init__(len(envs), {GROUP: agents}, {GROUP: observation_space}, {GROUP: action_space})
        self.envs = envs
        self._place = {agent: place for place, agent in enumerate(agents)}
        self._layout, self._actions = RowLayout(observation_space), RowLayout(action_space)
        self._are_numbers = isinstance(action_space, gym.spaces.Discrete)
        self._acting: list[list[Hashable] | None] = [None] * len(envs)  # None: the episode is over
        self._env_t = [0] * len(envs)
        self._unchecked = set(range(len(envs)))

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        for number, env_index in enumerate(env_indices.tolist()):
            self._acting[env_index], self._env_t[env_index] = None, 0
            with noted("reset()", env_index):
                result = self.envs[env_index].reset(seed=None if seeds is None else seeds[number])
            check_reset_result(result, env_index)
            obs, infos = result
            out.groups[GROUP].present[env_index] = False
            self._write(env_index, out, obs, infos)
            self._acting[env_index] = list(obs)

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        leaves = self._actions.leaves_of(actions[GROUP])
        numbers = leaves[0].tolist() if self._are_numbers else None
        group = out.groups[GROUP]
        group.present[:] = False
        for env_index, acting in enumerate(self._acting):
            if acting is None:
                continue
            if numbers is not None:
                of_env = numbers[env_index]
                sent = {agent: of_env[self._place[agent]] for agent in acting}
            else:
                places = [(agent, self._place[agent]) for agent in acting]
                sent = {
                    agent: self._actions.nest([leaf[env_index, place] for leaf in leaves]) for agent, place in places
                }
            with noted("step()", env_index):
                result = self.envs[env_index].step(sent)
            self._env_t[env_index] += 1
            self._acting[env_index] = self._write_step(env_index, out, result)

    def _write_step(self, env_index: int, out: StepArrays, result: Any) -> list[Hashable] | None:
        """Write a step; returns the agents that act next, or None if the episode is over."""
        if env_index in self._unchecked or not (isinstance(result, tuple) and len(result) == 5):
            check_step_result(result, env_index, self._env_t[env_index])
            self._unchecked.discard(env_index)
        obs, rewards, terminateds, truncateds, infos = result
        self._write(env_index, out, obs, infos)
        group, place_of = out.groups[GROUP], self._place_of
        for agent, reward in rewards.items():
            group.rewards[env_index, place_of(env_index, agent)] = reward
        ended = set()
        for flags, of_agents, of_env in (
            (terminateds, group.terminated, out.terminated),
            (truncateds, group.truncated, out.truncated),
        ):
            for agent, flag in flags.items():
                if flag and agent == ALL:
                    of_env[env_index] = True
                elif flag:
                    of_agents[env_index, place_of(env_index, agent)] = True
                    ended.add(agent)
        if out.terminated[env_index] or out.truncated[env_index]:
            return None
        return [agent for agent in obs if agent not in ended] if ended else list(obs)

    def _write(self, env_index: int, out: StepArrays, obs: dict, infos: dict) -> None:
        """Write observations and infos of an env."""
        group = out.groups[GROUP]
        arrays = self._layout.leaves_of(group.obs)
        for agent, value in obs.items():
            place = self._place_of(env_index, agent)
            for array, leaf, part in zip(
                arrays, self._layout.leaves, self._parts(env_index, agent, value), strict=True
            ):
                given = part if type(part) is np.ndarray else np.asarray(part)
                if given.shape != leaf.shape or not (given.dtype == array.dtype or can_hold(array.dtype, given)):
                    problem = f"observation: expected {array.dtype} {list(leaf.shape)}, got {described(given)}"
                    raise ObservationError(env_index, agent, self._env_t[env_index], problem)
                array[env_index, place] = given
            group.present[env_index, place] = True
        out.infos.extend((env_index, agent, info) for agent, info in infos.items() if info)

    def _parts(self, env_index: int, agent: Hashable, value: Any) -> list:
        try:
            return self._layout.leaves_of(value)
        except (KeyError, IndexError, TypeError) as error:
            problem = f"observation: expected {self.observation_spaces[agent]}, got {shown(value)}"
            raise ObservationError(env_index, agent, self._env_t[env_index], problem) from error

    def _place_of(self, env_index: int, agent: Hashable) -> int:
        try:
            return self._place[agent]
        except (KeyError, TypeError):
            problem = f"there is no such agent in possible_agents, {list(self._place)!r:.200}: each has a row there"
            raise UnknownAgentError(env_index, agent, self._env_t[env_index], problem) from None

    def close(self) -> None:
        """The envs are closed by the object that made them."""


@contextmanager
def noted(call: str, env_index: int) -> Iterator[None]:
    """Add the name of an env's method and the env's index to errors."""
    try:
        yield
    except Exception as error:
        error.add_note(f"fastmarl: raised by {call} of env {env_index}")
        raise
