"""Sequences of calls of a worker, such as an Algorithm and users make."""

from dataclasses import dataclass
from typing import Any

from rllib.differential.runs import moved
from rllib.differential.worlds import Rules
from rllib.old_stack.changes import CHANGES
from rllib.old_stack.mappings import mapping_fn
from rllib.old_stack.setups import Setup, policy_spec


@dataclass(frozen=True)
class Sample:
    """A call of sample(), or of sample_with_count()."""

    with_count: bool = False

    def on(self, worker: Any, setup: Setup) -> Any:
        return worker.sample_with_count() if self.with_count else worker.sample()


@dataclass(frozen=True)
class Ask:
    """A call of a method without arguments, for what it returns."""

    method: str

    def on(self, worker: Any, setup: Setup) -> Any:
        return getattr(worker, self.method)()


@dataclass(frozen=True, kw_only=True)
class SetWeights:
    """A call of set_weights() as an Algorithm makes it, with weights moved by `shift`."""

    seq_no: int | None = None
    timestep: int | None = None
    shift: float = 0.1
    only: tuple[str, ...] = ()

    def on(self, worker: Any, setup: Setup) -> Any:
        weights = moved(worker.get_weights([*self.only] or None), self.shift)
        updates = {"num_grad_updates_per_policy": {"p0": self.timestep}, "timestep": self.timestep}
        return worker.set_weights(weights, None if self.timestep is None else updates, self.seq_no)


@dataclass(frozen=True)
class SetGlobals:
    """A call of set_global_vars()."""

    timestep: int

    def on(self, worker: Any, setup: Setup) -> Any:
        return worker.set_global_vars({"timestep": self.timestep})


@dataclass(frozen=True)
class SyncFilters:
    """get_filters() and sync_filters(), as an Algorithm does with its workers' filters."""

    flush: bool = True

    def on(self, worker: Any, setup: Setup) -> Any:
        filters = worker.get_filters(flush_after=self.flush)
        worker.sync_filters({name: one.copy() for name, one in filters.items()})
        return filters


@dataclass(frozen=True)
class Restore:
    """set_state() of what get_state() says: RLlib makes new connectors of it."""

    def on(self, worker: Any, setup: Setup) -> Any:
        return worker.set_state(worker.get_state())


@dataclass(frozen=True)
class AddPolicy:
    """Another policy, with a mapping function if `mapping` is named."""

    name: str
    kind: str = "default"
    mapping: str | None = None

    def on(self, worker: Any, setup: Setup) -> Any:
        spec = policy_spec(setup, self.name, seed=900, kind=self.kind)
        function = _mapping(self.mapping, worker, setup.rules, self.name)
        return type(
            worker.add_policy(
                self.name,
                spec.policy_class or worker.default_policy_class,
                observation_space=spec.observation_space,
                action_space=spec.action_space,
                config=spec.config,
                policy_mapping_fn=function,
            )
        ).__name__


@dataclass(frozen=True)
class RemovePolicy:
    """Removes a policy of the worker."""

    name: str
    mapping: str | None = None

    def on(self, worker: Any, setup: Setup) -> Any:
        function = _mapping(self.mapping, worker, setup.rules, without=self.name)
        return worker.remove_policy(policy_id=self.name, policy_mapping_fn=function)


@dataclass(frozen=True)
class Remap:
    """Sets a new policy mapping function."""

    kind: str

    def on(self, worker: Any, setup: Setup) -> Any:
        return worker.set_policy_mapping_fn(_mapping(self.kind, worker, setup.rules))


@dataclass(frozen=True)
class Change:
    """A change that users make to a worker between two calls: one of CHANGES."""

    what: str

    def on(self, worker: Any, setup: Setup) -> Any:
        return CHANGES[self.what](worker)


def _mapping(kind: str | None, worker: Any, rules: Rules, more: str | None = None, without: str | None = None) -> Any:
    names = sorted({*worker.policy_map.keys(), *([more] if more else [])} - {without})
    return None if kind is None else mapping_fn(kind, names[::-1], rules)


@dataclass(frozen=True)
class Learn:
    """Samples once more and trains on the batch: it must be as usable as RLlib's."""

    def on(self, worker: Any, setup: Setup) -> Any:
        batch = worker.sample()
        return [worker.learn_on_batch(batch), batch]


Call = (
    Sample | Ask | SetWeights | SetGlobals | SyncFilters | Restore | AddPolicy | RemovePolicy | Remap | Change | Learn
)
