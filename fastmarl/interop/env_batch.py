"""A batch that steps single multi-agent envs and returns arrays."""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.arrays import COMMON, ArrayEnv, StepArrays
from fastmarl.core.envs.form import check_reset_result, check_step_result
from fastmarl.core.errors import MultiAgentEnvError, ObservationError, RewardError, UnknownAgentError, shown
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.values import can_hold, described
from fastmarl.core.vector.workers.env_workers import EnvWorkers
from fastmarl.core.vector.workers.process import WorkerProcess, error_of
from fastmarl.core.vector.workers.vector import NOTHING
from fastmarl.core.vector.workers.worker import RESET, STEP

ALL, GROUP = "__all__", "agents"


class EnvBatch(ArrayEnv):
    """Steps single envs sequentially; finished envs are skipped until they are reset.

    Args:
        envs: Multi-agent envs; see `fastmarl.envs.MultiAgentEnv`.
        agents: Ids of all possible agents.
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
        numbers = env_indices.tolist()
        for env_index in numbers:
            self._acting[env_index], self._env_t[env_index] = None, 0
        for env_index, result in self._reset_envs(numbers, [None] * len(numbers) if seeds is None else seeds):
            check_reset_result(result, env_index)
            obs, infos = result
            out.groups[GROUP].present[env_index] = False
            self._write(env_index, out, obs, infos)
            self._acting[env_index] = list(obs)

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        leaves = self._actions.leaves_of(actions[GROUP])
        numbers = leaves[0].tolist() if self._are_numbers else None
        out.groups[GROUP].present[:] = False
        sent: dict[int, dict] = {}
        for env_index, acting in enumerate(self._acting):
            if acting is None:
                continue
            if numbers is not None:
                of_env = numbers[env_index]
                sent[env_index] = {agent: of_env[self._place[agent]] for agent in acting}
            else:
                places = [(agent, self._place[agent]) for agent in acting]
                sent[env_index] = {
                    agent: self._actions.nest([leaf[env_index, place] for leaf in leaves]) for agent, place in places
                }
        for env_index, result in self._step_envs(sent):
            self._env_t[env_index] += 1
            self._acting[env_index] = self._write_step(env_index, out, result)

    def _reset_envs(self, env_indices: list[int], seeds: Sequence[int | None]) -> Iterator[tuple[int, Any]]:
        """Reset these envs; yield (env index, result)."""
        for env_index, seed in zip(env_indices, seeds, strict=True):
            with noted("reset()", env_index):
                result = self.envs[env_index].reset(seed=seed)
            yield env_index, result

    def _step_envs(self, actions: dict[int, dict]) -> Iterator[tuple[int, Any]]:
        """Step the envs in `actions`; yield (env index, result). Read each result before advancing."""
        for env_index, of_env in actions.items():
            with noted("step()", env_index):
                result = self.envs[env_index].step(of_env)
            yield env_index, result

    def _write_step(self, env_index: int, out: StepArrays, result: Any) -> list[Hashable] | None:
        """Write a step; return the agents that act next, or None if the episode is over."""
        if env_index in self._unchecked or not (isinstance(result, tuple) and len(result) == 5):
            check_step_result(result, env_index, self._env_t[env_index])
            self._unchecked.discard(env_index)
        try:
            return self._written(env_index, out, result)
        except (AttributeError, TypeError, ValueError):
            check_step_result(result, env_index, self._env_t[env_index])
            raise

    def _written(self, env_index: int, out: StepArrays, result: tuple) -> list[Hashable] | None:
        obs, rewards, terminateds, truncateds, infos = result
        self._write(env_index, out, obs, infos)
        group, place_of = out.groups[GROUP], self._place_of
        for agent, reward in rewards.items():
            group.rewards[env_index, place_of(env_index, agent)] = (
                reward if type(reward) is float else self._number(env_index, agent, reward)
            )
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
        for agent, info in infos.items():
            if not isinstance(info, dict):
                problem = f"expected a dict as info, got {shown(info)}"
                raise MultiAgentEnvError(env_index, agent, self._env_t[env_index], problem)
            if info:
                if agent != COMMON:
                    self._place_of(env_index, agent)
                out.infos.append((env_index, agent, info))

    def _number(self, env_index: int, agent: Hashable, reward: Any) -> float:
        """Convert a reward, which may be a number or an array with a single number, to a float."""
        with suppress(Exception):  # the value's own code may raise anything
            array = np.asarray(reward)
            if array.dtype.kind in "biuf" and array.size == 1:
                return float(array.item())
        problem = f"expected a number as reward, got {shown(reward)}"
        raise RewardError(env_index, agent, self._env_t[env_index], problem)

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
            problem = f"agent is not in possible_agents, {list(self._place)!r:.200}; only those agents have a row"
            raise UnknownAgentError(env_index, agent, self._env_t[env_index], problem) from None

    def forget(self) -> None:
        """Drop all episodes and pending results after an error or an interrupt; all envs must then be reset."""
        self._acting = [None] * len(self._acting)


class WorkerBatch(EnvBatch):
    """Steps the envs of several worker processes concurrently.

    Args:
        workers: The workers.
        agents: Ids of all possible agents.
        observation_space, action_space: Spaces of each agent.
    """

    def __init__(
        self, workers: EnvWorkers, agents: Sequence[Hashable], observation_space: gym.Space, action_space: gym.Space
    ):
        super().__init__(workers.envs, agents, observation_space, action_space)
        self._workers = workers.workers

    def _reset_envs(self, env_indices: list[int], seeds: Sequence[int | None]) -> Iterator[tuple[int, Any]]:
        of_env = dict(zip(env_indices, seeds, strict=True))
        asked = []
        for worker in self._workers:
            wanted = [(index, of_env[i]) for index, i in enumerate(worker.env_indices) if i in of_env]
            if wanted:
                asked.append((worker, [index for index, _ in wanted], worker.send(RESET + pickle.dumps(wanted))))
        for worker, indices, number in asked:
            yield from self._answers(worker, indices, number, is_reset=True)

    def _step_envs(self, actions: dict[int, dict]) -> Iterator[tuple[int, Any]]:
        asked = []
        for worker in self._workers:
            indices = [index for index, i in enumerate(worker.env_indices) if i in actions]
            of_envs = [(index, actions[worker.env_indices[index]]) for index in indices]
            pickled = {index: of_env for index, of_env in of_envs if not worker.slots[index].actions.write(of_env)}
            if indices:
                asked.append((worker, indices, worker.send(STEP + pickle.dumps((indices, pickled)))))
        for worker, indices, number in asked:
            yield from self._answers(worker, indices, number, is_reset=False)

    def _answers(
        self, worker: WorkerProcess, indices: list[int], number: int, *, is_reset: bool
    ) -> Iterator[tuple[int, Any]]:
        """Yield (env index, result) for the envs of a worker; observations are views of its shared memory."""
        extras = worker.recv(number) or {}
        for index in indices:
            extra, results = extras.get(index, NOTHING), worker.slots[index].results
            if extra.failure is not None:
                raise error_of(extra.failure)
            read = results.read_reset if is_reset else results.read
            yield worker.env_indices[index], read(extra.infos or {}) if extra.result is None else extra.result[0]

    def forget(self) -> None:
        """Drop all episodes and pending results after an error or an interrupt; all envs must then be reset."""
        super().forget()
        for worker in self._workers:
            worker.forget()


@contextmanager
def noted(call: str, env_index: int) -> Iterator[None]:
    """Add a note with the env method and the env index to errors."""
    try:
        yield
    except Exception as error:
        error.add_note(f"fastmarl: raised by {call} of env {env_index}")
        raise
