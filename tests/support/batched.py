"""Any multi-agent envs as a batch that steps in arrays."""

from collections.abc import Hashable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.arrays import ArrayEnv, StepArrays
from fastmarl.core.envs.base import env_spaces
from fastmarl.core.envs.resumable import supports_checkpoint
from fastmarl.core.spaces.layout import RowLayout


class Batched(ArrayEnv):
    """Envs that speak in dicts by agent, stepped one after the other; those with equal spaces are a group.

    Args:
        envs: with the same agents.
        agents: their ids.
    """

    seeds_each_episode = True

    def __init__(self, envs: Sequence[Any], agents: Sequence[Hashable]):
        self.envs = envs
        groups: dict[str, list[Hashable]] = {}
        spaces: dict[str, tuple[gym.Space, gym.Space]] = {}
        for agent in agents:
            of_agent = env_spaces(envs[0], agent)
            name = next((name for name, known in spaces.items() if known == of_agent), f"group {len(spaces)}")
            spaces[name] = of_agent
            groups.setdefault(name, []).append(agent)
        super().__init__(
            len(envs),
            groups,
            {k: obs for k, (obs, _) in spaces.items()},
            {k: action for k, (_, action) in spaces.items()},
        )
        self.place = {agent: (name, i) for name, ids in groups.items() for i, agent in enumerate(ids)}
        self.obs_leaves = {name: RowLayout(obs).leaves for name, (obs, _) in spaces.items()}
        self.action_layouts = {name: RowLayout(action) for name, (_, action) in spaces.items()}
        self.discrete = {name for name, (_, action) in spaces.items() if isinstance(action, gym.spaces.Discrete)}
        self.acting: list[list[Hashable]] = [[] for _ in envs]

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        for k, env_index in enumerate(env_indices.tolist()):
            obs, infos = self.envs[env_index].reset(seed=None if seeds is None else seeds[k])
            self._write_obs(env_index, obs, out)
            self.acting[env_index] = list(obs)
            out.infos.extend((env_index, agent, info) for agent, info in infos.items())

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        for env_index, env in enumerate(self.envs):
            result = env.step({agent: self._action(actions, env_index, agent) for agent in self.acting[env_index]})
            obs, rewards, terminateds, truncateds, infos = result
            self._write_obs(env_index, obs, out)
            for agent, reward in rewards.items():
                name, i = self.place[agent]
                out.groups[name].rewards[env_index, i] = reward
            for flags, column in ((terminateds, "terminated"), (truncateds, "truncated")):
                getattr(out, column)[env_index] = flags.get("__all__", False)
                for agent in flags.keys() - {"__all__"}:
                    name, i = self.place[agent]
                    getattr(out.groups[name], column)[env_index, i] = flags[agent]
            out.infos.extend((env_index, agent, info) for agent, info in infos.items() if info)
            self.acting[env_index] = [a for a in obs if not (terminateds.get(a) or truncateds.get(a))]

    def _write_obs(self, env_index: int, obs: dict, out: StepArrays) -> None:
        for name, group in out.groups.items():
            group.present[env_index] = [agent in obs for agent in self.groups[name]]
        for agent, observation in obs.items():
            name, i = self.place[agent]
            for leaf in self.obs_leaves[name]:
                array, value = out.groups[name].obs, observation
                for key in leaf.path:
                    array, value = array[key], value[key]
                array[env_index, i] = value

    def _action(self, actions: dict[str, Any], env_index: int, agent: Hashable) -> Any:
        name, i = self.place[agent]
        layout, values = self.action_layouts[name], []
        for leaf in layout.leaves:
            array = actions[name]
            for key in leaf.path:
                array = array[key]
            values.append(array[env_index, i])
        return int(values[0]) if name in self.discrete else layout.nest(values)

    @property
    def supports_checkpoint(self) -> bool:  # type: ignore[override]
        return all(map(supports_checkpoint, self.envs))

    def get_state(self) -> Any:
        return {"acting": self.acting, "envs": [env.get_state() for env in self.envs]}

    def set_state(self, state: Any) -> None:
        self.acting = state["acting"]
        for env, of_env in zip(self.envs, state["envs"], strict=True):
            env.set_state(of_env)

    def close(self) -> None:
        for env in self.envs:
            if hasattr(env, "close"):
                env.close()
