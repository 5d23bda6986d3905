"""Worker policies, their mapping function, and the selection of policies to train."""

import math
import weakref
from collections import ChainMap
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

from fastmarl.core.errors import ConfigError, misfit
from fastmarl.core.modules.base import RLModule
from fastmarl.core.objects.rllib_classes import is_of_rllib
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.policies.policy_spec import PolicySpec
from fastmarl.legacy.sampling.episode_view import EpisodeV2
from fastmarl.legacy.sampling.worker_callbacks import WorkerCallbacks

MappingFn = Callable[..., str]
ToTrain = Collection[str] | Callable[..., bool]


class PolicyMap(dict[str, Policy]):
    """Dict of policy id -> policy, in insertion order.

    A removed policy continues to act in the episodes that were running when it was removed.

    Args:
        policy_config: Options of all policies.
        default_policy_class: Function (module, config) -> Policy, for specs without a class.
        max_seq_len: Value of this option for policy classes that have it.
        callbacks: Callbacks of the worker, which the policies call.

    Attributes:
        capacity: Maximum number of policies in memory; always infinite.
        policy_states_are_swappable: Always False, because policies never reuse objects of other policies.
    """

    capacity = math.inf
    policy_states_are_swappable = False

    def __init__(
        self,
        policy_config: Mapping[str, Any],
        default_policy_class: Any,
        max_seq_len: int,
        callbacks: WorkerCallbacks,
    ):
        super().__init__()
        self._config, self._default_class = policy_config, default_policy_class
        self._max_seq_len, self._callbacks = max_seq_len, callbacks
        self._leaving: dict[str, Policy] = {}
        self._episodes_of: dict[str, Collection[str]] = {}

    @property
    def cache(self) -> "PolicyMap":
        """The policies in memory, which are all policies."""
        return self

    @property
    def acting(self) -> Mapping[str, Policy]:
        """A view of all policies that act, including removed ones in running episodes."""
        return ChainMap(self, self._leaving)

    def __setitem__(self, policy_id: str, policy: Policy) -> None:
        if self._callbacks.has("on_learn_on_batch"):
            policy.callbacks = PolicyCallbacks(self._callbacks)
        super().__setitem__(policy_id, policy)

    def make(self, policy_id: str, spec: PolicySpec, module: RLModule) -> Policy:
        """Create a policy from a spec, without adding it to the map.

        Raises:
            ConfigError: If the policy class is from RLlib.
        """
        policy_class = spec.policy_class or self._default_class
        if isinstance(policy_class, type) and is_of_rllib(policy_class):
            raise ConfigError(f"policy {policy_id!r}: {policy_class.__name__} is an RLlib class, which builds "
                              "its own model; derive a class from fastmarl.legacy.TorchPolicy")  # fmt: skip
        config = {**self._config, **(spec.config or {})}
        if "max_seq_len" in getattr(policy_class, "DEFAULTS", ()):
            config["max_seq_len"] = self._max_seq_len
        return policy_class(module, config)

    def remove(self, policy_id: str, running: Collection[str]) -> None:
        """Remove a policy; it remains in `acting` until the `running` episodes have finished."""
        self._leaving[policy_id] = self.pop(policy_id)
        self._episodes_of[policy_id] = set(running)

    def forget_idle(self, under_way: Collection[str]) -> None:
        """Drop removed policies whose last running episode has finished."""
        for policy_id, episodes in list(self._episodes_of.items()):
            if set(episodes).isdisjoint(under_way):
                del self._leaving[policy_id], self._episodes_of[policy_id]


class PolicyCallbacks:
    """The callbacks of a worker, as called by its policies."""

    def __init__(self, callbacks: WorkerCallbacks):
        self._callbacks = callbacks

    def on_learn_on_batch(self, **arguments: Any) -> None:
        self._callbacks.call("on_learn_on_batch", **arguments)


def learns_if(to_train: ToTrain) -> Callable[..., bool]:
    """Convert `to_train` to a function (policy id, batch or None) -> bool.

    Raises:
        ConfigError: If `to_train` is neither a function nor a collection of policy ids.
    """
    if callable(to_train):
        return to_train
    if isinstance(to_train, str) or not isinstance(to_train, Collection):
        raise ConfigError(f"expected a collection of policy ids or a callable, got {to_train!r}")
    return LearnsIfIn(to_train)


class LearnsIfIn:
    """A picklable function that returns True for the given policies."""

    def __init__(self, policy_ids: Collection[str]):
        self._policy_ids = frozenset(policy_ids)

    def __call__(self, policy_id: str, batch: Any = None) -> bool:
        return policy_id in self._policy_ids


def for_runner(mapping_fn: MappingFn, worker: Any) -> MappingFn:
    """Adapt a mapping function to the runner; functions for the old RLlib API stack also take the worker.

    Raises:
        ConfigError: If the function accepts neither (agent_id, episode) nor (agent_id, episode, worker=worker).
    """
    if not callable(mapping_fn):
        raise ConfigError(f"policy_mapping_fn must be callable, got {mapping_fn!r}")
    if reason := misfit(mapping_fn, "agent_id", None, worker=None):
        if not misfit(mapping_fn, "agent_id", None):
            return mapping_fn
        raise ConfigError(f"policy_mapping_fn must accept (agent_id, episode, worker=worker): {reason}")

    find = weakref.ref(worker)  # weak, since the runner of the worker references the function

    def with_worker(agent_id: Hashable, episode: Any) -> str:
        return mapping_fn(agent_id, EpisodeV2(episode, find()), worker=find())

    return with_worker
