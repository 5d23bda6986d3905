"""The modules of a runner while it samples, and the assignment of agents to them.

Running episodes keep their modules when modules are added or removed.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import torch

from fastmarl.core.connectors.env_actions import EnvActions
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.episodes.log import EpisodeLog
from fastmarl.core.errors import ConfigError, UnknownModuleError
from fastmarl.core.inference.inference import ModuleInference
from fastmarl.core.inference.masks import ActionMasks
from fastmarl.core.modules.base import RLModule
from fastmarl.core.native._records import EpisodeRecord, map_all
from fastmarl.core.nets.dense_layers import parts_of
from fastmarl.core.nets.graphs import GraphCall, TickGraphs
from fastmarl.core.objects.weakly import weakly
from fastmarl.core.spaces.layout import serves
from fastmarl.core.store.agent_spaces import Spaces
from fastmarl.core.store.store import INACTIVE

MappingFn = Callable[..., str]  # (agent id, episode) -> module id
MOST_UNKNOWN = 1024  # limit on remembered space checks, since unknown agents may keep appearing


@dataclass(eq=False)
class Actor:
    """A module ready to act in a runner, with its connectors and masks.

    Attributes:
        episodes: For a removed module, the running episodes in which it continues to act.
    """

    module_id: str
    module: RLModule
    connectors: ModuleConnectors
    inference: ModuleInference
    masks: ActionMasks
    env_actions: EnvActions
    episodes: set[EpisodeRecord] = field(default_factory=set)

    def fits(self, spaces: Spaces) -> bool:
        """Return True if the module can act for agents with these spaces."""
        return serves(self.connectors.spaces, spaces, bounds=self.env_actions.uses_bounds)

    def rest(self) -> None:
        """Free the per-agent memory; call this only while the module has no agents."""
        self.inference.rest()
        self.env_actions.forget()


class Policies:
    """The policies of a runner, indexed by module index.

    Args:
        log: Log of the episodes, with a store created for these policies.
        policies: Policies in the order of their indices.

    Attributes:
        by_index: Policies by index; None for removed ones.
        env_actions: Actions for the envs, by module index.
        may_differ: True if other code that may have changed modules has run since `renew()`.
    """

    def __init__(self, log: EpisodeLog, policies: list[Actor]):
        self._log = log
        self._store = log.store
        self._store.on_activate = weakly(self._evaluate)
        self.by_index: list[Actor | None] = list(policies)
        self.env_actions = [policy.env_actions for policy in policies]
        self._index_of = {policy.module_id: index for index, policy in enumerate(policies)}
        self._fitting: set[tuple[int, int, Hashable]] = set()  # (index, env index, agent id) with matching spaces
        self._leaving: list[int] = []
        self._is_sampling = False
        self.may_differ = False
        self._training: list[torch.nn.Module] = []  # modules and submodules that are temporarily in evaluation mode

    # Assigning agents to modules.

    def begin_episodes(self, env_indices: list[int], mapping_fn: MappingFn | None) -> None:
        """Set the mapping function of the new episodes in these envs, for all their agents."""
        only_module = -1
        if mapping_fn is None:
            (only_module,) = self._index_of.values()
        map_all(self._store.table.records, env_indices, mapping_fn, only_module)

    def is_outdated(self, env_index: int, mapping_fn: MappingFn | None) -> bool:
        """Return True if the episode of the env would use different policies if it started now with this function."""
        record = self._store.table.record(env_index)
        return record.policy_mapping_fn != mapping_fn or any(record in self.at(i).episodes for i in self._leaving)

    def module_for(self, agent_id: Hashable, env_index: int) -> int:
        """Return the module index of an agent; called once per agent and episode.

        Raises:
            UnknownModuleError: If the mapping function returned an unknown module id.
            ConfigError: If the spaces of the module differ from the agent's.
        """
        index = self._mapped_to(agent_id, env_index)
        if (index, env_index, agent_id) not in self._fitting:
            self._check_spaces(index, env_index, agent_id)
        return index

    def _mapped_to(self, agent_id: Hashable, env_index: int) -> int:
        record = self._store.table.record(env_index)
        if record.policy_mapping_fn is None:
            return record.only_module
        module_id = record.policy_mapping_fn(agent_id, self._log.opened_chunk(env_index))
        for index in self._leaving:
            policy = self.at(index)
            if policy.module_id == module_id and record in policy.episodes:
                return index
        if not isinstance(module_id, str) or module_id not in self._index_of:
            raise UnknownModuleError(module_id, agent_id, list(self._index_of))
        return self._index_of[module_id]

    def _check_spaces(self, index: int, env_index: int, agent_id: Hashable) -> None:
        policy, spaces = self.at(index), self._store.table.spaces[env_index].get(agent_id)
        if spaces is not None and not policy.fits(spaces):
            made_for = policy.connectors.spaces
            raise ConfigError(f"agent {agent_id!r} of env {env_index} is mapped to module {policy.module_id!r}, which "
                              f"has different spaces: expected {made_for}, got {spaces}; map it to another module"
                              )  # fmt: skip
        if len(self._fitting) < MOST_UNKNOWN or agent_id in self._store.table.known_agents[env_index]:
            self._fitting.add((index, env_index, agent_id))

    def indices(self) -> dict[str, int]:
        """Return module id -> module index, without removed modules."""
        return dict(self._index_of)

    def backend(self, module_id: str) -> str:
        """Return the current backend of a module."""
        inference = self.at(self._index_of[module_id]).inference
        inference.renew()
        return inference.backend

    def at(self, index: int) -> Actor:
        """Return a module that was not removed."""
        policy = self.by_index[index]
        assert policy is not None
        return policy

    # Launching.

    def launch(self, graphs: TickGraphs, explore: bool, seconds: dict[str, float]) -> None:
        """Launch the forward passes of all captured modules that act next, without waiting for the device.

        `inference.act()` of each module waits for its results.
        """
        begun = perf_counter()
        store, calls = self._store, list[GraphCall]()
        for index in store.active:
            policy, first, end = self.at(index), store.acting_from[index], store.rows[index].n
            if first < end and policy.inference.is_captured():
                legal = policy.masks.find(store.blocks[index], first, end)
                calls.append(policy.inference.call(store.blocks[index], first, end, legal, explore=explore))
        if calls:
            launch = graphs.launch(calls, explore=explore)
            for call in calls:
                call.member.launched = launch
        seconds["forward"] += perf_counter() - begun

    # Adding and removing modules.

    def add(self, policy: Actor) -> None:
        """Add a policy with an unused id."""
        index = self.by_index.index(None) if None in self.by_index else len(self.by_index)
        self.by_index[index : index + 1] = [policy]
        self._fitting.clear()  # the index may have belonged to another module
        self.env_actions[index : index + 1] = [policy.env_actions]
        self._index_of[policy.module_id] = index
        self._store.put_module(index, policy.module_id, policy.connectors.recorded_layout, policy.connectors)

    def remove(self, module_id: str) -> None:
        """Remove a module: it gets no new episodes, and remains until its running ones have finished."""
        index = self._index_of.pop(module_id)
        self.at(index).episodes = self._running()
        self._leaving.append(index)
        if not self._is_sampling:
            self.tidy()

    def tidy(self) -> None:
        """Free memory of idle modules and drop removed ones no longer in use; called between `sample()` calls."""
        running = self._running() if self._leaving else set()
        for index in list(self._leaving):
            if self.at(index).episodes.isdisjoint(running):
                self._store.deactivate(index)
                self.at(index).rest()
                self.by_index[index] = None
                self._leaving.remove(index)
        for policy, block in zip(self.by_index, self._store.blocks, strict=True):
            if policy is not None and block is INACTIVE:
                policy.rest()

    def _running(self) -> set[EpisodeRecord]:
        return {record for record in self._store.table.records if record is not None}

    # Evaluation mode.

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Put acting modules into evaluation mode (no dropout), and restore their modes at the end."""
        self._is_sampling = True
        try:
            for index in self._store.active:
                self._evaluate(index)
            yield
        finally:
            self.end_evaluation()

    def end_evaluation(self) -> None:
        """Restore the modes that modules had before `sampling()`; a second call completes an interrupted one."""
        self._is_sampling = False
        for part in self._training:
            part.training = True
        self._training.clear()

    def leave_modes(self) -> None:
        """Restore the torch modes after an error; these policies cannot act afterwards."""
        for policy in self.by_index:
            if policy is not None:
                policy.inference.leave_modes()

    def renew(self) -> None:
        """Choose all backends again, because modules may have changed while sampling."""
        self.may_differ = False
        for index in self._store.active:
            self.at(index).inference.renew()

    def _evaluate(self, index: int) -> None:
        module = self.at(index).module
        self.at(index).inference.renew()
        training = [part for part in parts_of(module) if part.training]
        if training:
            self._training += training
            module.eval()
