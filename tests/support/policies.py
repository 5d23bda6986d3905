"""Modules that say who they are, and an oracle of who should have acted while modules come and go."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from fastmarl.core.spaces.structs import map_struct
from support.compare import SideBySide
from support.replay import SerialPolicy
from support.runner import Episode, ReferenceRunner
from support.worlds import Call, World


class Numbered(torch.nn.Module):
    """A SerialPolicy that signs its answers with its number; with memory, it counts its steps."""

    def __init__(self, number: int, obs_kind: str, action_kind: str, has_memory: bool):
        super().__init__()
        self.number = number
        self.has_memory = has_memory
        self.policy = SerialPolicy(obs_kind, action_kind)
        self.observation_space, self.action_space = self.policy.observation_space, self.policy.action_space

    def get_initial_state(self) -> dict[str, Any]:
        return {"steps": np.zeros(1, np.float32)} if self.has_memory else {}

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        assert not self.training, "acts in training mode"
        obs = map_struct(lambda leaf: leaf.squeeze(1), batch["obs"]) if self.has_memory else batch["obs"]
        outputs = self.policy({"obs": obs})
        outputs["number"] = torch.full((len(outputs["serial"]),), self.number)
        if not self.has_memory:
            return outputs
        in_time = {name: value.unsqueeze(1) for name, value in outputs.items()}
        return {**in_time, "state_out": {"steps": batch["state_in"]["steps"] + 1}}


class PolicyOracle(ReferenceRunner):
    """Knows for every agent of every episode the number of the module that should act for it.

    Args:
        mapping: agent -> module id, of the episodes that begin now.
        numbers: module id -> number, of the modules that there are now.
        ended: called when an episode has ended, before the next one of its env begins.
    """

    def __init__(self, world: World, mapping: dict[Hashable, str], numbers: dict[str, int], ended: Callable[[], None]):
        self.mapping, self.numbers, self.ended = mapping, numbers, ended
        self.mapping_of: dict[tuple[int, int], dict[Hashable, str]] = {}  # by (env, reset)
        self.removed_in: dict[tuple[int, int], dict[str, int]] = {}  # modules that were removed while it ran
        self.chosen: dict[tuple[int, int], dict[Hashable, tuple[str, int]]] = {}
        self._wants_fresh = False
        super().__init__(world)

    def remove(self, module_id: str) -> None:
        number = self.numbers.pop(module_id)
        for episode in filter(None, self.ongoing):
            self.removed_in[episode.env, episode.resets].setdefault(module_id, number)

    def sample(self, call: Call) -> list:
        self._wants_fresh = call.force_reset or self._target(call)[1]
        return super().sample(call)

    def _take_policies(self, episode: Episode) -> None:
        key = episode.env, episode.resets
        self.mapping_of[key], self.removed_in[key], self.chosen[key] = self.mapping, {}, {}

    def _is_dropped(self, episode: Episode) -> bool:
        key = episode.env, episode.resets
        is_outdated = self.mapping_of[key] is not self.mapping or bool(self.removed_in[key])
        return super()._is_dropped(episode) or (self._wants_fresh and is_outdated)

    def _module_for(self, agent: Hashable, episode: Episode) -> str:
        key = episode.env, episode.resets
        if key not in self.mapping_of:
            self._take_policies(episode)
        if agent not in self.chosen[key]:
            module_id = self.mapping_of[key][agent]
            number = self.removed_in[key].get(module_id, self.numbers.get(module_id, -1))
            self.chosen[key][agent] = module_id, number
        return self.chosen[key][agent][0]

    def _begin(self, env: int) -> Episode:
        episode = super()._begin(env)
        if (env, episode.resets) not in self.mapping_of:
            self._take_policies(episode)  # no agent was there before
        return episode

    def _close(self, episode: Episode) -> None:
        super()._close(episode)
        if episode.is_over:
            self.ended()


class PoliciesSideBySide(SideBySide):
    """One runner and one such oracle over the same world."""

    def __init__(self, world: World, mapping: dict, modules: dict[str, Numbered], ended: Callable[[], None], **options):
        super().__init__(
            world,
            policies=modules,
            policy_mapping_fn=lambda agent, episode: mapping[agent],
            callbacks_on_episode_end=lambda **kwargs: self.ended_in_runner(),
            **options,
        )
        self.ended_in_runner = lambda: None
        numbers = {module_id: module.number for module_id, module in modules.items()}
        self.oracle: PolicyOracle = PolicyOracle(world, mapping, numbers, ended)
