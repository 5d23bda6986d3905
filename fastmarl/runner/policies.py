"""A runner's policies: modules that come and go, who is mapped to which, and which of them learn."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fastmarl.acting.backends.transfer import Transfer
from fastmarl.acting.env_actions import EnvActions
from fastmarl.acting.inference import InferenceOptions, ModuleInference
from fastmarl.acting.masks import ActionMasks
from fastmarl.acting.policies import MappingFn, Policies, Policy
from fastmarl.config import EnvRunnerConfig
from fastmarl.connectors.env_to_module import EnvToModule
from fastmarl.connectors.module_connectors import ModuleConnectors
from fastmarl.errors import ConfigError
from fastmarl.modules import MultiRLModule, RLModule
from fastmarl.native._call_guard import CallGuard
from fastmarl.record.lanes import LaneTable
from fastmarl.runner.building import make_connectors, make_module, spaces_of, warn_of_objects
from fastmarl.runner.envs import Envs
from fastmarl.seeds import Streams

ToTrain = Collection[str] | Callable[..., bool]


@dataclass(frozen=True)
class ModuleChange:
    """A module is added, takes another's place, or (None) is removed; `config` is the runner's afterwards."""

    module_id: str
    module: RLModule | None
    connectors: ModuleConnectors | None
    config: EnvRunnerConfig


class RunnerPolicies:
    """The methods of a runner that change its policies, from one call of `sample()` to the next or in callbacks.

    Episodes that are running go on as they began: every agent keeps its module, agents that join later are mapped by
    the function that was in force at the reset, and a module that was removed (or replaced) acts on in them. An env
    that was reset at the end of a call has begun its next episode; `sample(force_reset=True)` and
    `sample(num_episodes=n)` begin it again if it would be another one now.

    `config` is replaced by one with the changes, so that it always tells what is in force.
    """

    config: EnvRunnerConfig
    module: MultiRLModule
    env_to_module: EnvToModule
    _generator: torch.Generator
    _rng: np.random.Generator
    _table: LaneTable
    _envs: Envs
    _policies: Policies
    _streams: Streams
    _transfer: Transfer
    _inference_options: InferenceOptions
    _calls: CallGuard
    _is_whole: bool
    _n_added = 0
    _change: ModuleChange | None = None  # which has not come to its end

    def _check_running(self) -> None:
        raise NotImplementedError

    @property
    def inference_backends(self) -> dict[str, str]:
        """Module id -> what runs it: "lean", "cuda graph" and for how many batch sizes, or "torch" (or "torch.compile")
        and why not by these; see docs/inference.md."""
        return {module_id: self._policies.backend(module_id) for module_id in self.module}

    def add_module(
        self,
        module_id: str,
        module_spec: Any = None,
        *,
        new_agent_to_module_mapping_fn: MappingFn | None = None,
        new_should_module_be_updated: ToTrain | None = None,
        env_to_module_connector: Any = None,
        override: bool = False,
    ) -> RLModule:
        """Add a module, without a change to running episodes; give it weights with `set_weights({module_id: ...})`.

        Args:
            module_spec: RLModuleSpec, torch.nn.Module, or None for the default net, as in the option `policies`.
            new_agent_to_module_mapping_fn: the `policy_mapping_fn` of episodes that begin from now on.
            new_should_module_be_updated: `policies_to_train` from now on.
            env_to_module_connector: the module's connectors, as in the option of that name; None: what the option has
                for it. What connectors have learned is theirs: give a snapshot those of the original with
                `runner.env_to_module.set_state({module_id: runner.env_to_module.get_state()[original]})`.
            override: take the place of a module of that id, as if it had been removed first.

        Returns:
            The module.

        Raises:
            ConfigError: the id is taken, the module has no spaces, or a second module has no mapping function to choose
                among them. Nothing was changed.
        """
        self._check_changeable("add_module()")
        known = self.config.module_specs
        if module_id in known and not override:
            raise ConfigError(
                f"there is a module {module_id!r} already; remove it, or pass override=True to replace it"
            )
        policies = {**known, module_id: module_spec}
        config = self._changed(policies, new_agent_to_module_mapping_fn, new_should_module_be_updated)
        if env_to_module_connector is not None:
            given = config.env_to_module_connector
            of_others = given if isinstance(given, Mapping) else dict.fromkeys(known, given)
            config = replace(config, env_to_module_connector={**of_others, module_id: env_to_module_connector})
        self._n_added += 1
        with self._streams.torch_seeded(self._n_added):
            connectors = make_connectors(config, self._envs, module_id)
            module = make_module(config, self._envs, module_id, connectors)
        module.to(self._transfer.device)
        self._change_modules(ModuleChange(module_id, module, connectors, config))
        return module

    def remove_module(
        self,
        module_id: str,
        *,
        new_agent_to_module_mapping_fn: MappingFn | None = None,
        new_should_module_be_updated: ToTrain | None = None,
    ) -> RLModule:
        """Remove a module. It acts on in the episodes that are running, and is freed when the last of them has ended.

        Args:
            new_agent_to_module_mapping_fn: the `policy_mapping_fn` of episodes that begin from now on.
            new_should_module_be_updated: `policies_to_train` from now on.

        Returns:
            The module.

        Raises:
            ConfigError: there is no such module, or no other. Nothing was changed.
        """
        self._check_changeable("remove_module()")
        policies = self.config.module_specs
        if module_id not in policies:
            raise ConfigError(f"there is no module {module_id!r} to remove; there are {sorted(policies)}")
        del policies[module_id]
        config = self._changed(policies, new_agent_to_module_mapping_fn, new_should_module_be_updated)
        module = self.module[module_id]
        self._change_modules(ModuleChange(module_id, None, None, config))
        return module

    def set_policy_mapping_fn(self, policy_mapping_fn: MappingFn) -> None:
        """Map the agents of episodes that begin from now on by another function."""
        self._check_changeable("set_policy_mapping_fn()")
        if not callable(policy_mapping_fn):
            raise ConfigError(f"policy_mapping_fn must be callable, got {policy_mapping_fn!r}")
        self.config = replace(self.config, policy_mapping_fn=policy_mapping_fn)

    def _check_changeable(self, method: str) -> None:
        """Modules are changed between calls, or in callbacks of the one under way."""
        self._check_running()
        self._calls.check(method, or_within=True)

    def _change_modules(self, change: ModuleChange) -> None:
        """Make a change; should that be interrupted, the next call of any kind finishes it."""
        module_id, module, connectors = change.module_id, change.module, change.connectors
        policy = None if module is None else self._make_policy(module_id, module, connectors)
        was_whole, self._is_whole = self._is_whole, False
        self._change = change
        if module_id in self.module:
            self._policies.remove(module_id)
        if policy is not None:
            self._policies.add(policy)
        self._finish_change()
        self._is_whole = was_whole

    def _finish_change(self) -> None:
        change = self._change
        if change is None:
            return
        self.env_to_module.put(change.module_id, change.connectors)
        if change.module is not None:
            self.module.add_module(change.module_id, change.module, override=True)
        elif change.module_id in self.module:
            self.module.remove_module(change.module_id)
        self.config = change.config
        self._change = None

    def should_module_be_updated(self, module_id: str, multi_agent_batch: Any = None) -> bool:
        """Whether a module learns, by `policies_to_train`."""
        return self.config.is_policy_to_train(module_id, multi_agent_batch)

    def _make_policy(self, module_id: str, module: RLModule, connectors: ModuleConnectors | None) -> Policy:
        config, (observation_space, action_space) = self.config, spaces_of(module)
        connectors = connectors or ModuleConnectors(
            module_id, (), observation_space, action_space, keep_dtype=config.keep_dtype
        )
        connectors.bind(self._table)
        warn_of_objects(module_id, connectors.recorded_layout)
        options = {"normalize": config.normalize_actions, "clip": config.clip_actions}
        return Policy(
            module_id,
            module,
            connectors,
            ModuleInference(
                module_id,
                module,
                self._transfer,
                self._generator,
                self._rng,
                self._table,
                connectors,
                self._inference_options,
            ),
            ActionMasks(connectors.sent_space, action_space, self._table, connectors.recorded_layout.space),
            EnvActions(module_id, action_space, **options, as_arrays=self._envs.is_batch),
        )

    def _changed(
        self, policies: dict[str, Any], mapping_fn: MappingFn | None, to_train: ToTrain | None
    ) -> EnvRunnerConfig:
        """The config with other policies; those that are gone need no training any more."""
        if to_train is None:
            to_train = self.config.policies_to_train
            if to_train is not None and not callable(to_train):
                to_train = [module_id for module_id in to_train if module_id in policies]
        mapping_fn = self.config.policy_mapping_fn if mapping_fn is None else mapping_fn
        connectors = self.config.env_to_module_connector
        if isinstance(connectors, Mapping):
            connectors = {module_id: of_module for module_id, of_module in connectors.items() if module_id in policies}
        return replace(
            self.config,
            policies=policies,
            policy_mapping_fn=mapping_fn,
            policies_to_train=to_train,
            env_to_module_connector=connectors,
        )
