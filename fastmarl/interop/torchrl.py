"""TorchRL environment over the agents of multi-agent environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.masks import choices_of, mask_key
from fastmarl.core.spaces.structs import map_struct
from fastmarl.interop.agent_rows import AgentRows

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Binary, Composite, Unbounded
    from torchrl.envs import EnvBase
    from torchrl.envs.libs.gym import _gym_to_torchrl_spec_transform, set_gym_backend
except ImportError as error:
    raise ImportError("fastmarl.interop.torchrl needs TorchRL: pip install torchrl") from error

GROUP = "agents"
ENDS = ("done", "terminated", "truncated")
MULTIPLE = gym.spaces.MultiDiscrete, gym.spaces.MultiBinary


@public("fastmarl.interop.torchrl")
class TensorDictEnv(EnvBase):
    """A TorchRL environment that batches copies of a multi-agent environment, for TorchRL collectors and losses.

    ```python
    env = TensorDictEnv("mpe2.simple_spread_v3", num_envs=32)
    collector = Collector(env, policy, frames_per_batch=3200, total_frames=1_000_000)
    ```

    TensorDicts have the batch size [E] and contain the group "agents" with batch size [E, A], in the order of `agents`.
    The entries of the group are "observation", nested like the space without its action mask; "action"; "mask", bool,
    True where an agent acts on its observation; and, for discrete actions, "action_mask", bool [E, A, choices], which
    is all True if the env has no masks. A step adds "reward", float32 [E, A, 1], and "done", "terminated" and
    "truncated", bool [E, A, 1], which remain True for finished agents until the next reset. The same three entries at
    the root, [E, 1], are True if the episode of the env is over. Exclude rows where "mask" is False from losses: their
    agents have finished, or are waiting and keep their last observation.

    Args:
        env: Environment as in `EnvRunnerConfig(env=...)`, such as a PettingZoo name, a class, a function or a
            `fastmarl` env. All agents must have the same spaces and be in `possible_agents`.
        num_envs: Number of copies, E.
        env_config: Options of the environment.
        max_steps: Env steps after which episodes are truncated; None for no limit.
        num_env_workers: Number of processes that step the environments; 0 for one per core, None for the current
            process.
        device: Device of the TensorDicts.

    Attributes:
        agents: Ids of the A agents.
        n_agents: Number of agents, A.

    Raises:
        ConfigError: If agents have different spaces, TensorDicts do not support them, or an argument is out of range.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int = 1,
        *,
        env_config: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
        num_env_workers: int | None = None,
        device: Any = "cpu",
    ):
        rows = AgentRows(env, num_envs, env_config, max_steps, num_env_workers)
        try:
            super().__init__(device=device, batch_size=[num_envs])
            self._rows, self.agents, self.n_agents = rows, rows.agents, len(rows.agents)
            self._shape = num_envs, self.n_agents
            self._mask_key = mask_key(rows.observation_space, rows.action_space)
            self._has_choices = bool(choices_of(rows.action_space))
            self._first_action = getattr(rows.action_space, "start", 0)
            self._seeds: list[int] | None = None
            self._ended = np.zeros((2, *self._shape), np.bool_)  # terminated and truncated agents
            self._make_specs()
        except BaseException:
            rows.close()
            raise

    def _make_specs(self) -> None:
        space, action_space = self._rows.observation_space, self._rows.action_space
        if isinstance(action_space, gym.spaces.Dict) or not (_is_supported(space) and _is_supported(action_space)):
            raise ConfigError(f"TensorDictEnv supports Discrete, 1-D MultiDiscrete and MultiBinary, Box that is "
                              f"neither 0-D nor empty, in observations also Dict, and no unsigned integers except "
                              f"uint8; got {space}, and {action_space} for actions: convert them in a wrapper around "
                              f"the env")  # fmt: skip
        seen = {"observation": self._of_agents(self._without_mask(space)), "mask": _flags(*self._shape)}
        if self._has_choices:
            seen["action_mask"] = _flags(*self._shape, sum(choices_of(action_space)))
        self.observation_spec = self._group(seen)
        self.action_spec = self._group({"action": self._of_agents(action_space)})
        self.reward_spec = self._group({"reward": Unbounded(shape=(*self._shape, 1))})
        of_agents, of_envs = ({name: _flags(*shape, 1) for name in ENDS} for shape in (self._shape, self._shape[:1]))
        self.done_spec = self._group(of_agents, **of_envs)

    def _group(self, of_agents: Mapping[str, Any], **of_envs: Any) -> Composite:
        """Return a spec with `of_agents` in the agent group and `of_envs` at the root."""
        group = Composite(of_agents, shape=self._shape)
        return Composite({GROUP: group, **of_envs}, shape=self._shape[:1]).to(self.device)

    def _of_agents(self, space: gym.Space) -> Any:
        """Return the spec for one value of `space` per agent."""
        with set_gym_backend("gymnasium"):
            spec = _gym_to_torchrl_spec_transform(
                space, remap_state_to_observation=False, categorical_action_encoding=True, device="cpu"
            )
        return spec.expand(*self._shape, *spec.shape)

    def _without_mask(self, seen: Any) -> Any:
        """Remove the action mask from a Dict space or observation; a single remaining entry is unwrapped."""
        if self._mask_key is None:
            return seen
        rest = {key: seen[key] for key in seen if key != self._mask_key}
        if len(rest) == 1:
            return next(iter(rest.values()))
        return gym.spaces.Dict(rest) if isinstance(seen, gym.Space) else rest

    def _set_seed(self, seed: int | None) -> None:
        """Seed the next reset of all envs: env e gets seed + e."""
        self._seeds = None if seed is None else self._rows.seed(seed)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDict:
        """Start episodes in the envs selected by "_reset", or in all."""
        if kwargs:
            raise ConfigError(f"reset() takes no options, got {list(kwargs)}; pass them in env_config")
        chosen = None if tensordict is None else tensordict.get("_reset", None)
        n = self._shape[0]
        env_indices = np.arange(n) if chosen is None else np.flatnonzero(chosen.reshape(n, -1).any(1).cpu().numpy())
        seeds, self._seeds = self._seeds, None
        self._rows.reset(env_indices, None if seeds is None else [seeds[env_index] for env_index in env_indices])
        self._ended[:, env_indices] = False
        return self._results({})

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        actions = tensordict.get((GROUP, "action")).flatten(0, 1).cpu().numpy()
        rows = self._rows
        rows.step(actions + self._first_action)
        self._ended |= np.stack([rows.terminated, rows.truncated])
        return self._results({"reward": torch.from_numpy(rows.rewards.astype(np.float32))[..., None]})

    def _results(self, found: dict[str, Any]) -> TensorDict:
        """Return the TensorDict of a step or a reset, with the additional entries `found` in the agent group."""
        rows, (terminated, truncated) = self._rows, self._ended
        seen = _from_zero(rows.observation_space, rows.observations())
        found["observation"] = map_struct(self._by_agent, self._without_mask(seen))
        found["mask"] = torch.from_numpy(rows.active.copy())
        if self._has_choices:
            found["action_mask"] = self._by_agent(rows.action_masks())
        found |= _ends(terminated, truncated)
        group = TensorDict(found, batch_size=self._shape)
        of_envs = _ends(rows.is_terminated, rows.is_over & ~rows.is_terminated)
        return TensorDict({GROUP: group, **of_envs}, batch_size=self._shape[:1], device=self.device)

    def _by_agent(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.reshape(*self._shape, *array.shape[1:]))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close all envs; raise an error if they are already closed and `raise_if_closed` is True."""
        self._rows.close()
        super().close(raise_if_closed=raise_if_closed)


def _flags(*shape: int) -> Binary:
    return Binary(shape=shape, dtype=torch.bool)


def _is_supported(space: gym.Space) -> bool:
    if isinstance(space, gym.spaces.Dict):
        return all(isinstance(key, str) and _is_supported(part) for key, part in space.items())
    if isinstance(space, gym.spaces.Box):
        return 0 not in (len(space.shape), *space.shape) and space.dtype not in (np.uint16, np.uint32, np.uint64)
    return isinstance(space, gym.spaces.Discrete) or (isinstance(space, MULTIPLE) and len(space.shape) == 1)


def _from_zero(space: gym.Space, observations: Any) -> Any:
    """Shift discrete observations to start at 0, as in TorchRL."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _from_zero(part, observations[key]) for key, part in space.items()}
    start = getattr(space, "start", 0)
    return observations - start if np.any(start) else observations


def _ends(terminated: np.ndarray, truncated: np.ndarray) -> dict[str, torch.Tensor]:
    flags = terminated | truncated, terminated, truncated
    return {name: torch.from_numpy(each.copy())[..., None] for name, each in zip(ENDS, flags, strict=True)}
