"""Adapter from vmas worlds, which torch simulates together, to the array protocol."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.arrays import ArrayEnv, StepArrays, group_by_spaces, write_observations
from fastmarl.core.errors import EnvCheckError
from fastmarl.core.errors.checks import plain_seed
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.layout import RowLayout

if TYPE_CHECKING:
    import torch  # not at run time: worker processes without vmas worlds do not need it


@public("fastmarl.envs")
class VmasEnv(ArrayEnv):
    """Adapts a batch of vmas worlds, for example `vmas.make_env("balance", num_envs=512, terminated_truncated=True)`.

    Agents keep their vmas names; agents with equal spaces form a group. Episodes end for all agents at the same time.
    vmas resets worlds one by one, each at about the cost of stepping all worlds; if all worlds end together
    (`max_steps`), they are reset in one call. Only the first seed is used, for the entire batch.

    Args:
        env: Result of `vmas.make_env` without a wrapper, on any device.
        infos: If True, record the infos of each agent at each step, as arrays. This takes about 2 µs per agent step and
            value.

    Raises:
        EnvCheckError: If the env was created without `terminated_truncated=True`.
    """

    may_take_turns = False  # every vmas method replaces the state of the global generators of torch, NumPy and Python

    def __init__(self, env: Any, *, infos: bool = False):
        if not env.terminated_truncated:
            raise EnvCheckError("expected a vmas world with separate flags; create it with terminated_truncated=True")
        self.env = env
        self._infos = infos
        self._keys = [agent.name if env.dict_spaces else i for i, agent in enumerate(env.agents)]
        spaces: dict[Hashable, tuple[gym.Space, gym.Space]] = {
            agent.name: (_as_gymnasium(env.observation_space[key]), _as_gymnasium(env.action_space[key]))
            for agent, key in zip(env.agents, self._keys, strict=True)
        }
        super().__init__(env.num_envs, *group_by_spaces(spaces))
        position_of = {agent: (name, i) for name, agents in self.groups.items() for i, agent in enumerate(agents)}
        self._positions = [position_of[name] for name in spaces]  # in the order of the agents in vmas
        self._layouts = [RowLayout(obs) for obs, _ in spaces.values()]

    @staticmethod
    def adapts(env: Any) -> bool:
        """Return True if `env` has the attributes of a vmas environment."""
        return all(hasattr(env, name) for name in ("reset_at", "get_from_scenario", "terminated_truncated"))

    @property
    def unwrapped(self) -> Any:
        """The adapted vmas environment."""
        return self.env

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        if len(env_indices) == self.num_envs:
            observations = self.env.reset(seed=None if seeds is None else plain_seed(seeds[0]))
        else:
            for env_index in env_indices.tolist():
                self.env.reset_at(env_index, return_observations=False)
            (observations,) = self.env.get_from_scenario(
                get_observations=True, get_rewards=False, get_infos=False, get_dones=False
            )
        self._write_observations(observations, out, env_indices)

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        joint_action = [self._tensor(actions[name][:, i]) for name, i in self._positions]
        observations, rewards, terminated, truncated, infos = self.env.step(joint_action)
        self._write_observations(observations, out, np.arange(self.num_envs))
        for key, (name, i) in zip(self._keys, self._positions, strict=True):
            out.groups[name].rewards[:, i] = _array(rewards[key])
        out.terminated[:] = _array(terminated)
        out.truncated[:] = _array(truncated)
        if self._infos:
            self._add_infos(infos, out)

    def render(self) -> Any:
        return self.env.render(mode="rgb_array")

    def _tensor(self, actions: np.ndarray) -> torch.Tensor:
        """Convert actions of any action space to a tensor [E, k]."""
        import torch

        return torch.from_numpy(actions.reshape(self.num_envs, -1)).to(self.env.device)

    def _write_observations(self, observations: Any, out: StepArrays, envs: np.ndarray) -> None:
        agents = zip(self.env.agents, self._keys, self._positions, self._layouts, strict=True)
        for agent, key, (name, i), layout in agents:
            targets, sources = layout.leaves_of(out.groups[name].obs), layout.leaves_of(observations[key])
            for target, source in zip(targets, sources, strict=True):
                write_observations(target[:, i], _array(source), envs, agent.name)

    def _add_infos(self, infos: Any, out: StepArrays) -> None:
        for key, agent in zip(self._keys, self.env.agents, strict=True):
            columns = {name: _array(values) for name, values in infos[key].items()}
            for env_index in range(self.num_envs):
                out.infos.append((env_index, agent.name, {name: column[env_index] for name, column in columns.items()}))


def _as_gymnasium(space: Any) -> gym.Space:
    """Convert a space from the old gym package, which vmas uses, to Gymnasium."""
    kind = type(space).__name__
    if kind == "Dict":
        return gym.spaces.Dict({key: _as_gymnasium(part) for key, part in space.spaces.items()})
    if kind == "Box":
        return gym.spaces.Box(space.low, space.high, space.shape, space.dtype)
    if kind == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(space.nvec)
    return gym.spaces.Discrete(int(space.n))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
