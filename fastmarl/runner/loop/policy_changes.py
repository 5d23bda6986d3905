"""Changes to the policies of a runner: modules, agent mapping, and the set of trained modules.

Changes are made between calls of `sample()` or in callbacks. Running episodes continue unchanged: every agent keeps its
module, agents that appear later are mapped by the function active at the reset, and removed or replaced modules
continue to act. An env reset at the end of a call has already started its next episode; `sample(force_reset=True)` and
`sample(num_episodes=n)` restart that episode if it would now use different policies.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.core.inference.actors import MappingFn
from fastmarl.core.modules.base import RLModule
from fastmarl.runner.loop.building import make_connectors, make_module
from fastmarl.runner.loop.resources import OF_POLICIES
from fastmarl.runner.loop.sampling import Sampling

ToTrain = Collection[str] | Callable[..., bool]


class PolicyChanges:
    """Changes the policies of a runner."""

    def __init__(self, sampling: Sampling):
        self._sampling = sampling
        self._resources = sampling.resources
        self._n_added = 0

    @exits_as_errors()
    def add(
        self,
        module_id: str,
        module_spec: Any,
        mapping_fn: MappingFn | None,
        to_train: ToTrain | None,
        connectors: Any,
        override: bool,
    ) -> RLModule:
        """Implement `add_module()` of `MultiAgentEnvRunner`."""
        self._check_nothing_waits()
        resources = self._resources
        known = resources.config.module_specs
        if module_id in known and not override:
            raise ConfigError(f"module {module_id!r} already exists; remove it, or pass override=True to replace it")
        config = self._changed({**known, module_id: module_spec}, mapping_fn, to_train)
        if connectors is not None:
            given = config.env_to_module_connector
            of_others = given if isinstance(given, Mapping) else dict.fromkeys(known, given)
            config = replace(config, env_to_module_connector={**of_others, module_id: connectors})
        self._n_added += 1

        def made() -> tuple[ModuleConnectors | None, RLModule]:
            made_connectors = make_connectors(config, resources.envs, module_id)
            return made_connectors, make_module(config, resources.envs, module_id, made_connectors)

        made_connectors, module = resources.streams.torch_seeded(made, self._n_added)
        module.to(resources.transfer.device)
        self._change(module_id, module, made_connectors, config)
        return module

    def remove(self, module_id: str, mapping_fn: MappingFn | None, to_train: ToTrain | None) -> RLModule:
        """Implement `remove_module()` of `MultiAgentEnvRunner`."""
        self._check_nothing_waits()
        policies = self._resources.config.module_specs
        if module_id not in policies:
            raise ConfigError(f"cannot remove the unknown module {module_id!r}; choose from {sorted(policies)}")
        if len(policies) == 1:
            raise ConfigError(f"cannot remove {module_id!r}, the only module; add another one first")
        del policies[module_id]
        config = self._changed(policies, mapping_fn, to_train)
        module = self._resources.module[module_id]
        self._change(module_id, None, None, config)
        return module

    def map_by(self, mapping_fn: MappingFn) -> None:
        """Implement `set_policy_mapping_fn()` of `MultiAgentEnvRunner`."""
        if not callable(mapping_fn):
            raise ConfigError(f"policy_mapping_fn must be callable, got {mapping_fn!r}")
        self._check_nothing_waits()
        self._resources.put_policies(replace(self._resources.config, policy_mapping_fn=mapping_fn))

    def _check_nothing_waits(self) -> None:
        """Raise ConfigError if policy options of the runner config have not taken effect yet."""
        now, wanted = self._resources.config, self._resources.wanted
        if names := [name for name in OF_POLICIES if getattr(wanted, name) is not getattr(now, name)]:
            raise ConfigError(f"{names} of runner.config have not taken effect yet; call make_module() first")

    def _change(
        self, module_id: str, module: RLModule | None, connectors: ModuleConnectors | None, config: EnvRunnerConfig
    ) -> None:
        """Call `Resources.put_module()`; if it is interrupted, the next call of any method completes it."""
        sampling, resources, rollout = self._sampling, self._resources, self._sampling.rollout
        policy = None if module is None else rollout.make_policy(module_id, module, connectors)
        was_intact, sampling.is_intact = sampling.is_intact, False
        resources.change = partial(resources.put_module, module_id, module, connectors, config)
        if module_id in resources.module:
            rollout.policies.remove(module_id)
        if policy is not None:
            rollout.policies.add(policy)
        resources.finish_change()
        sampling.is_intact = was_intact

    def _changed(
        self, policies: dict[str, Any], mapping_fn: MappingFn | None, to_train: ToTrain | None
    ) -> EnvRunnerConfig:
        """Return the config with these policies, dropping removed ones from `policies_to_train`."""
        config = self._resources.config
        if to_train is None:
            to_train = config.policies_to_train
            if to_train is not None and not callable(to_train):
                to_train = [module_id for module_id in to_train if module_id in policies]
        connectors = {option: getattr(config, option) for option in CONNECTOR_OPTIONS}
        for option, given in connectors.items():
            if isinstance(given, Mapping):
                connectors[option] = {module_id: given[module_id] for module_id in given if module_id in policies}
        return replace(
            config,
            policies=policies,
            policy_mapping_fn=config.policy_mapping_fn if mapping_fn is None else mapping_fn,
            policies_to_train=to_train,
            **connectors,
        )


class ChangesPolicies:
    """Methods of `MultiAgentEnvRunner` for changing its policies."""

    config: EnvRunnerConfig
    _policy_changes: PolicyChanges
    _check_changeable: Callable[[str], None]

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
        """Add a module; running episodes are not affected. Set its weights with `set_weights({module_id: ...})`.

        Args:
            module_id: Id of the module.
            module_spec: RLModuleSpec, torch.nn.Module, or None for a default network, as in the option `policies`.
            new_agent_to_module_mapping_fn: `policy_mapping_fn` for new episodes.
            new_should_module_be_updated: New value of `policies_to_train`.
            env_to_module_connector: Connectors of the module, as in the option of that name; None uses the option. To
                copy the connector states of a module to its snapshot, call `runner.env_to_module.set_state({module_id:
                runner.env_to_module.get_state()[original]})`.
            override: Replace any module with this id, as if it had been removed first.

        Returns:
            The new module.

        Raises:
            ConfigError: If the id is taken, the module has no spaces, or there is no mapping function to choose between
                several modules. Nothing is changed.
        """
        self._check_changeable("add_module()")
        return self._policy_changes.add(
            module_id,
            module_spec,
            new_agent_to_module_mapping_fn,
            new_should_module_be_updated,
            env_to_module_connector,
            override,
        )

    def remove_module(
        self,
        module_id: str,
        *,
        new_agent_to_module_mapping_fn: MappingFn | None = None,
        new_should_module_be_updated: ToTrain | None = None,
    ) -> RLModule:
        """Remove a module. It continues to act in running episodes and is freed when the last of them finishes.

        Args:
            module_id: Id of the module.
            new_agent_to_module_mapping_fn: `policy_mapping_fn` for new episodes.
            new_should_module_be_updated: New value of `policies_to_train`.

        Returns:
            The removed module.

        Raises:
            ConfigError: If the module does not exist or is the only one. Nothing is changed.
        """
        self._check_changeable("remove_module()")
        return self._policy_changes.remove(module_id, new_agent_to_module_mapping_fn, new_should_module_be_updated)

    def set_policy_mapping_fn(self, policy_mapping_fn: MappingFn) -> None:
        """Set the `policy_mapping_fn` that maps agents to modules in new episodes."""
        self._check_changeable("set_policy_mapping_fn()")
        self._policy_changes.map_by(policy_mapping_fn)

    def should_module_be_updated(self, module_id: str, multi_agent_batch: Any = None) -> bool:
        """Return whether `policies_to_train` includes the module `module_id`.

        `multi_agent_batch` is passed on if `policies_to_train` is a function.
        """
        return self.config.is_policy_to_train(module_id, multi_agent_batch)
