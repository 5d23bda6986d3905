"""Envs that replay a `World`, and the policies that answer to serial numbers."""

from collections.abc import Hashable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from fastmarl.core.spaces.structs import map_struct
from support.batched import Batched
from support.worlds import World

POISON = 113
INF = float("inf")
OBS_SPACES: dict[str, gym.Space] = {
    "vector32": gym.spaces.Box(-INF, INF, (2,), np.float32),
    "vector64": gym.spaces.Box(-INF, INF, (3,), np.float64),
    "image": gym.spaces.Box(0, 255, (2, 2, 1), np.uint8),
    "nested": gym.spaces.Dict(
        {
            "serial": gym.spaces.Box(-INF, INF, (1,), np.float64),
            "pair": gym.spaces.Tuple((gym.spaces.Box(0, 2**30, (2,), np.int32), gym.spaces.Box(0, 1, (), np.float32))),
        }
    ),
}
ACTION_SPACES: dict[str, gym.Space] = {
    "discrete": gym.spaces.Discrete(5),
    "multi": gym.spaces.MultiDiscrete([3, 7]),
    "box": gym.spaces.Box(-INF, INF, (2,), np.float32),
}


def encode(kind: str, serials: Any) -> Any:
    """Observations with these serial numbers (int or int array [n]), in the dtypes of the space."""
    s = np.asarray(serials, np.int64)
    if kind == "vector32":
        return np.stack([s, -s], axis=-1).astype(np.float32)
    if kind == "vector64":
        return np.stack([s, -s, s / 8], axis=-1)
    if kind == "image":
        digits = np.stack([s & 255, s >> 8 & 255, s >> 16 & 255, s * 0 + 7], axis=-1)
        return digits.astype(np.uint8).reshape(*s.shape, 2, 2, 1)
    pair = (np.stack([s, s + 1], axis=-1).astype(np.int32), np.asarray(s % 2, np.float32))
    return {"serial": s[..., None].astype(np.float64), "pair": pair}


def recorded(world: World, module: str, serials: Any) -> Any:
    """Return the observations as a runner records them."""
    obs = encode(world.obs_kinds[module], serials)
    return obs if world.keep_float64 else map_struct(_rounded, obs)


def _rounded(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf


def decode(kind: str, obs: Any) -> torch.Tensor:
    """Serial numbers, int64 [n], of a batch of observations."""
    if kind == "nested":
        return obs["serial"][:, 0].to(torch.int64)
    if kind == "image":
        digits = obs.reshape(len(obs), 4).to(torch.int64)
        return digits[:, 0] + 256 * digits[:, 1] + 65536 * digits[:, 2]
    return obs[:, 0].to(torch.int64)


def encode_actions(kind: str, actions: list) -> np.ndarray:
    return np.array(actions, np.float32 if kind == "box" else np.int64)


class SerialPolicy(torch.nn.Module):
    """Answers `action_of(serial)`, and says to which serial number it answered."""

    def __init__(self, obs_kind: str, action_kind: str):
        super().__init__()
        self.obs_kind = obs_kind
        self.action_kind = action_kind
        self.observation_space = OBS_SPACES[obs_kind]
        self.action_space = ACTION_SPACES[action_kind]

    def forward(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        s = decode(self.obs_kind, batch["obs"])
        if self.action_kind == "discrete":
            actions = s % 5
        elif self.action_kind == "multi":
            actions = torch.stack([s % 3, s % 7], dim=-1)
        else:
            actions = torch.stack([s % 11, -(s % 13)], dim=-1).to(torch.float32)
        return {"actions": actions, "serial": s, "two": torch.stack([s, -s], dim=-1).to(torch.float32)}


class ScriptedEnv(fastmarl.MultiAgentEnv):
    """Replays `world.scripts[index]`; remembers its rewards and the actions that it got."""

    def __init__(self, world: World, index: int):
        super().__init__()
        self.world, self.index = world, index
        self.possible_agents = list(world.agents) if world.declared else []
        self.observation_spaces = {agent: self.get_observation_space(agent) for agent in self.possible_agents}
        self.action_spaces = {agent: self.get_action_space(agent) for agent in self.possible_agents}
        self.agents = list(self.possible_agents)
        self.resets = -1
        self.t = 0
        self.over = True
        self.reward_sums: dict[int, float] = {}
        """By reset: the sum of all rewards."""
        self.actions: dict[tuple[int, int, int], dict[Hashable, Any]] = {}
        """(index, reset, t) -> a copy of the actions that lead from t to t + 1."""
        self._buffers: dict[Hashable, Any] = {}
        self._state = np.zeros(3, np.int64)

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        return OBS_SPACES[self.world.obs_kinds[self.world.module_of[agent_id]]]

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        return ACTION_SPACES[self.world.action_kinds[self.world.module_of[agent_id]]]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.resets += 1
        self.t = 0
        self.over = False
        self.reward_sums[self.resets] = 0.0
        tick = self.world.script(self.index, self.resets)[0]
        return self._observations(tick.obs), {agent: dict(info) for agent, info in tick.infos.items()}

    def step(self, action_dict: dict[Hashable, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert not self.over, "stepped after the episode had ended"
        self.actions[self.index, self.resets, self.t] = {
            agent: action.copy() if isinstance(action, np.ndarray) else action for agent, action in action_dict.items()
        }
        if self.world.reuse_arrays:
            for action in action_dict.values():
                if isinstance(action, np.ndarray):
                    action[...] = POISON
        self.t += 1
        tick = self.world.script(self.index, self.resets)[self.t]
        self.over = tick.is_last
        self.reward_sums[self.resets] += sum(float(np.asarray(reward).item()) for reward in tick.rewards.values())
        infos = {agent: dict(info) for agent, info in tick.infos.items()}
        return self._observations(tick.obs), dict(tick.rewards), dict(tick.terminateds), dict(tick.truncateds), infos

    def state(self) -> np.ndarray:
        """(index, reset, env step), always in the same array."""
        self._state[:] = self.index, self.resets, self.t
        return self._state

    supports_checkpoint = True

    def get_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("resets", "t", "over", "reward_sums", "actions")}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def _observations(self, locals_by_agent: dict[Hashable, int]) -> dict[Hashable, Any]:
        return {agent: self._observation(agent, local) for agent, local in locals_by_agent.items()}

    def _observation(self, agent: Hashable, local: int) -> Any:
        kind = self.world.obs_kinds[self.world.module_of[agent]]
        obs = encode(kind, self.world.serial(self.index, self.resets, local))
        if not self.world.reuse_arrays:
            return obs
        buffer = self._buffers.setdefault(agent, obs)
        for old, new in zip(leaves(buffer), leaves(obs), strict=True):
            old[...] = new
        return buffer


def leaves(value: Any) -> list[np.ndarray]:
    """The arrays of a nested dict or tuple, in a fixed order."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def make_config(
    world: World, *, batched: bool = False, **options: Any
) -> tuple[fastmarl.EnvRunnerConfig, list[ScriptedEnv]]:
    """The runner's config for `world`, and the list that will hold its envs once they are made: single, or a batch (a
    batch for each part, after one of all envs)."""
    envs: list[ScriptedEnv] = []

    def make_batch(context: Any) -> Batched:
        if context.vector_index == 0:
            envs.clear()
        n_parts = 1 if context.num_envs == world.num_envs else min(world.num_envs, world.num_splits)
        made = [ScriptedEnv(world, index) for index in range(context.vector_index, world.num_envs, n_parts)]
        envs.extend(made)
        return Batched(made, world.agents)

    def make_env(context: Any) -> ScriptedEnv:
        envs.append(ScriptedEnv(world, context.vector_index))
        return envs[-1]

    def mapping(agent_id: Hashable, episode: Any) -> str:
        return world.module_of[agent_id]

    defaults: dict[str, Any] = {
        "env": make_batch if batched else make_env,
        "num_envs_per_env_runner": world.num_envs,
        "worker_num_splits": min(world.num_splits, world.num_envs),
        "rollout_fragment_length": world.fragment,
        "batch_mode": world.batch_mode,
        "count_steps_by": world.count_steps_by,
        "policies": {
            module: SerialPolicy(kind, world.action_kinds[module]) for module, kind in world.obs_kinds.items()
        },
        "policy_mapping_fn": mapping,
        "keep_float64": world.keep_float64,
        "episode_lookback_horizon": world.lookback,
        "late_rewards": world.late_rewards,
        "respawn": world.respawn,
        "metrics_num_episodes_for_smoothing": world.window,
    }
    return fastmarl.EnvRunnerConfig(**(defaults | options)), envs
