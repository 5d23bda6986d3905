"""Who acts for whom, and who learns, as functions."""

from collections.abc import Callable, Collection, Hashable
from typing import Any

from fastmarl.core.errors import ConfigError, misfit

MappingFn = Callable[..., str]
ToTrain = Collection[str] | Callable[..., bool]


def learns_if(to_train: ToTrain) -> Callable[..., bool]:
    """`(policy id, batch or None) -> bool`, of that or of ids.

    Raises:
        ConfigError: it is neither.
    """
    if callable(to_train):
        return to_train
    if isinstance(to_train, str) or not isinstance(to_train, Collection):
        raise ConfigError(f"expected policy ids or a callable, got {to_train!r}")
    return LearnsIfIn(to_train)


class LearnsIfIn:
    """Whether a policy is among those that learn; can be pickled."""

    def __init__(self, policy_ids: Collection[str]):
        self._policy_ids = frozenset(policy_ids)

    def __call__(self, policy_id: str, batch: Any = None) -> bool:
        return policy_id in self._policy_ids


def for_runner(mapping_fn: MappingFn, worker: Any) -> MappingFn:
    """A mapping function as the runner calls it: one for RLlib's old API stack takes the worker, too.

    Raises:
        ConfigError: it can be called neither way.
    """
    if not callable(mapping_fn):
        raise ConfigError(f"policy_mapping_fn must be callable, got {mapping_fn!r}")
    if not misfit(mapping_fn, "agent_id", None):
        return mapping_fn
    if reason := misfit(mapping_fn, "agent_id", None, worker=None):
        raise ConfigError(f"policy_mapping_fn is called as f(agent_id, episode, worker=worker): {reason}")

    def with_worker(agent_id: Hashable, episode: Any) -> str:
        return mapping_fn(agent_id, episode, worker=worker)

    return with_worker
