"""A container for several modules, such as all modules of a runner."""

from collections.abc import Collection, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any, cast

import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.errors.checks import for_each
from fastmarl.core.errors.states import check_mapping
from fastmarl.core.modules.base import RLModule, as_rl_module, training_only
from fastmarl.core.objects.public import public


@public("fastmarl.modules")
class MultiRLModule(torch.nn.Module):
    """A mapping of module id -> module that is itself a torch module containing all of them.

    Args:
        modules: Dict of module id -> RLModule, or any torch module whose `forward(batch)` returns a dict.
    """

    def __init__(self, modules: Mapping[str, torch.nn.Module] | None = None):
        super().__init__()
        for module_id, module in (modules or {}).items():
            self.add_module(module_id, module)

    def add_module(self, module_id: str, module: torch.nn.Module | None, *, override: bool = False) -> None:
        """Add `module` under the id `module_id`; with `override`, an existing module is replaced.

        Raises:
            ConfigError: If the id is not a string or is taken (without `override`), or `module` is not a torch module.
        """
        if not isinstance(module_id, str):
            raise ConfigError(f"a module id must be a string, got {module_id!r}")
        if module_id in self and not override:
            raise ConfigError(f"module {module_id!r} already exists; pass override=True to replace it")
        if module is None:
            raise ConfigError(f"module {module_id!r} must be a torch.nn.Module, got None")
        # Unlike `torch.nn.Module.add_module()`, this accepts ids that contain dots or equal an attribute name.
        self._modules[module_id] = as_rl_module(module)

    def remove_module(self, module_id: str) -> RLModule:
        """Remove and return the module `module_id`. Raises KeyError if it does not exist."""
        module = self[module_id]
        del self._modules[module_id]
        return module

    def __getitem__(self, module_id: str) -> RLModule:
        if module_id not in self._modules:
            raise KeyError(f"no module {module_id!r}; available: {list(self._modules)}")
        return cast(RLModule, self._modules[module_id])

    def get(self, module_id: str, default: Any = None) -> Any:
        return self._modules.get(module_id, default)

    def __contains__(self, module_id: object) -> bool:
        return module_id in self._modules

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def keys(self) -> KeysView[str]:
        return self._modules.keys()

    def values(self) -> ValuesView[RLModule]:
        return cast(ValuesView[RLModule], self._modules.values())

    def items(self) -> ItemsView[str, RLModule]:
        return cast(ItemsView[str, RLModule], self._modules.items())

    def forward(self, batch: Mapping[str, dict[str, Any]], **kwargs: Any) -> dict[str, dict[str, Any]]:
        """Map {module id: batch} to {module id: outputs}."""
        return {module_id: self[module_id].forward(part, **kwargs) for module_id, part in batch.items()}

    def forward_exploration(
        self, batch: Mapping[str, dict[str, Any]], t: int | None = None, **kwargs: Any
    ) -> dict[str, dict[str, Any]]:
        """Map {module id: batch} to {module id: outputs}; `t` is as in `RLModule.forward_exploration()`."""
        return {
            module_id: self[module_id].forward_exploration(part, t=t, **kwargs) for module_id, part in batch.items()
        }

    def forward_inference(self, batch: Mapping[str, dict[str, Any]], **kwargs: Any) -> dict[str, dict[str, Any]]:
        """Map {module id: batch} to {module id: outputs}."""
        return {module_id: self[module_id].forward_inference(part, **kwargs) for module_id, part in batch.items()}

    def forward_train(self, batch: Mapping[str, dict[str, Any]], **kwargs: Any) -> dict[str, dict[str, Any]]:
        """Map {module id: batch} to {module id: outputs}."""
        return {module_id: self[module_id].forward_train(part, **kwargs) for module_id, part in batch.items()}

    def get_initial_state(self) -> dict[str, dict[str, Any]]:
        """Return {module id: initial state} of the recurrent modules."""
        return {module_id: module.get_initial_state() for module_id, module in self.items() if module.is_stateful()}

    def is_stateful(self) -> bool:
        """Return True if any module is recurrent."""
        return any(module.is_stateful() for module in self.values())

    def get_state(
        self, module_ids: Collection[str] | None = None, *, inference_only: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Return {module id: weights}.

        Args:
            module_ids: Ids of the modules to include; None for all.
            inference_only: If True, omit weights not needed for acting: the attributes returned by a module's
                `get_non_inference_attributes()`. `set_state()` also accepts such states.
        """
        states = {module_id: self[module_id].get_state() for module_id in (self if module_ids is None else module_ids)}
        if not inference_only:
            return states
        for module_id, state in states.items():
            for name in training_only(self[module_id], state):
                del state[name]
        return states

    def check_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise ConfigError if `state` contains unknown modules or weights that do not match their module."""
        check_mapping("the state of modules", state)
        unknown = [module_id for module_id in state if module_id not in self]
        if unknown:
            raise ConfigError(f"the state contains unknown modules {unknown}; expected a subset of {list(self)}")

        def check(module_id: str) -> None:
            try:
                self[module_id].check_state(state[module_id])
            except ConfigError as error:
                raise ConfigError(f"module {module_id!r}: {error}") from error

        for_each(state, check)

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Set weights from {module id: weights}; modules missing from `state` keep their weights.

        Raises:
            ConfigError: If `check_state()` rejects `state`; no module is changed.
        """
        self.check_state(state)
        for module_id, weights in state.items():
            self[module_id].set_state(weights)
