"""The policies of a worker, and those that act on in running episodes after they were removed."""

from collections import ChainMap
from collections.abc import Collection, Mapping
from typing import Any

from fastmarl.core.modules.base import RLModule
from fastmarl.legacy.config import PolicySpec
from fastmarl.legacy.policies.policy import Policy


class PolicyMap(dict[str, Policy]):
    """Policy id -> policy, in order of the ids' appearance.

    Args:
        policy_config: options of all policies.
        default_policy_class: of those whose spec has none: `(module, config) -> Policy`.
        max_seq_len: an option of those whose class has it.
    """

    def __init__(self, policy_config: Mapping[str, Any], default_policy_class: Any, max_seq_len: int):
        super().__init__()
        self._config, self._default_class = policy_config, default_policy_class
        self._max_seq_len = max_seq_len
        self._leaving: dict[str, Policy] = {}
        self._episodes_of: dict[str, Collection[str]] = {}
        self.acting: Mapping[str, Policy] = ChainMap(self, self._leaving)

    def make(self, policy_id: str, spec: PolicySpec, module: RLModule) -> Policy:
        """The policy of a spec; it is not in the map yet."""
        policy_class = spec.policy_class or self._default_class
        config = {**self._config, **spec.config}
        if "max_seq_len" in policy_class.DEFAULTS:
            config["max_seq_len"] = self._max_seq_len
        return policy_class(module, config)

    def remove(self, policy_id: str, running: Collection[str]) -> None:
        """Take a policy out; `acting` has it until these episodes have ended."""
        self._leaving[policy_id] = self.pop(policy_id)
        self._episodes_of[policy_id] = set(running)

    def forget_idle(self, under_way: Collection[str]) -> None:
        """Forget removed policies whose episodes are not among these any more."""
        for policy_id, episodes in list(self._episodes_of.items()):
            if set(episodes).isdisjoint(under_way):
                del self._leaving[policy_id], self._episodes_of[policy_id]
