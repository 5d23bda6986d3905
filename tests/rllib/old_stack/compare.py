"""Lists what is not bit-identical between two runs of the old stack: a readable line a difference, with the path to it.

Compared are types, orders of keys, dtypes, shapes, bytes, whether an array is read-only, and all attributes of batches.
What is not, and why that is harmless:

- Ids (`eps_id`, `unroll_id`, episode_id; also in texts of errors and in files): RLlib draws the one kind at random and
  counts the other in a variable of the class, so that they mean nothing beyond being equal or not. They must pair up
  one to one over the whole run: in batches, on the tape, in files.
- The clock (`perf_stats`, `connector_metrics`): readings differ between two runs of RLlib. Names, their order and
  types must be equal, and no reading may be negative or NaN if RLlib's is not.
- Addresses of objects in texts: another one in each run.
- Names of files that writers make: they hold the time of day. Their number, the index in their names and all that is
  in them are compared.
- Default factories, and functions: each run makes its own. Factories must give the same, functions have the same
  qualified name.
- Strides: no value depends on them.
- Private state that no public call shows: the collectors for inference in ViewRequirementAgentConnector and the
  generator within SyncSampler. What they lead to is in every later batch; what collectors of episodes hold is read by
  the callbacks "collectors" alone.

What RLlib does not do twice alike. Against itself it differs in none of the random cases 0 to 299 as they are, and in
19 of 60 if policies' spaces are left unseeded, in the columns new_obs and actions and all that follows from them:

- Observations that it makes up for agents that the end of an episode leaves without one: drawn from the policy's
  space, which is unseeded by default. Here all spaces are seeded before the worker is made; the states of their
  generators are compared at the end, as RLlib draws from them for default actions, too.
- Random actions of the exploration `Random`, which draws them from the policy's action space: seeded, as above.
- Draws from nested observation spaces by RLlib's models: a model makes a preprocessor, which draws, for each call, once
  a process has had 999 such spaces (`modelv2._cache`). Here each run begins with none.
- The order of policies whose names come out of a set (`policy_map.keys()`): within one process it is the same.
"""

import inspect
import math
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import gymnasium
import numpy as np
import torch
from ray import cloudpickle
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.evaluation.metrics import RolloutMetrics
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from rllib.old_stack.notes import ID_COLUMNS, Id

Lines = Iterator[str]
Rule = Callable[[Any, Any, str], Lines]

STATE_BUFFER = "StateBufferConnector"
LONG_NUMBER = re.compile(r"\b\d{12,18}\b")
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
ATOMS = (str, bytes, bool, int, float, complex, type(None), np.generic)
LOCKS = (type(threading.Lock()), type(threading.RLock()))


class Text(str):
    """A text in which ids and addresses may occur."""


class Comparison:
    """Compares two runs part by part. It knows which id of the one is which id of the other."""

    def __init__(self) -> None:
        self._their_id: dict[tuple[str, int], int] = {}
        self._our_id: dict[tuple[str, int], int] = {}
        self._rules: list[tuple[type | tuple[type, ...], Rule]] = [
            (SampleBatch, self._sample_batches),
            (MultiAgentBatch, self._attributes),
            (RolloutMetrics, self._metrics),
            (Id, self._ids),
            (Text, self._texts),
            (AlgorithmConfig, self._configs),
            (gymnasium.Space, self._spaces),
            (dict, self._dicts),
            ((set, frozenset), self._sets),
            ((list, tuple), self._sequences),
            (np.ndarray, self._arrays),
            (torch.Tensor, self._tensors),
            (type, self._values),
            (LOCKS, self._types),
            (ATOMS, self._values),
        ]

    def __call__(self, want: Any, got: Any, path: str) -> Lines:
        """The differences between two values of any kind that workers hand out."""
        if type(want) is not type(got):
            yield f"{path}: {_short(want)} / {_short(got)}"
            return
        for kind, rule in self._rules:
            if isinstance(want, kind):
                yield from rule(want, got, path)
                return
        if inspect.isroutine(want) or callable(want):
            theirs, ours = (getattr(one, "__qualname__", type(one).__qualname__) for one in (want, got))
            yield from self._values(theirs, ours, path)
        elif hasattr(want, "__dict__"):
            yield from self._attributes(want, got, path)
        else:
            yield from self._values(want, got, path)

    def entries(self, want: list[tuple], got: list[tuple], path: str) -> Lines:
        """Two tapes: the first entry that differs. All later ones follow from it."""
        for i, (theirs, ours) in enumerate(zip_longest(want, got)):
            where = [*self._frozen(theirs, ours, "")][:2]
            if where:
                called = theirs[:2] if theirs else ours[:2]
                head = f"{path}, entry {i} of {len(want)} / {len(got)}, {_short(called)}"
                yield from (f"{head}{line}" for line in where)
                return

    def _frozen(self, want: Any, got: Any, path: str) -> Lines:
        """Two frozen values; the path is that of indices."""
        if type(want) is tuple and type(got) is tuple:
            if len(want) != len(got):
                yield f"{path}: {_short(want)} / {_short(got)}"
            for i, (theirs, ours) in enumerate(zip(want, got, strict=False)):
                yield from self._frozen(theirs, ours, f"{path}[{i}]")
        elif isinstance(want, Id) and isinstance(got, Id):
            yield from self._ids(want, got, path)
        elif type(want) is not type(got) or want != got:
            yield f"{path}: {_short(want)} / {_short(got)}"

    def _ids(self, want: Id, got: Id, path: str) -> Lines:
        theirs, ours = (want.kind, want.value), (got.kind, got.value)
        paired = self._their_id.setdefault(theirs, got.value), self._our_id.setdefault(ours, want.value)
        if want.kind != got.kind or paired != (got.value, want.value):
            yield f"{path}: id {want.value} / {got.value}, but before these were those of {paired[0]} and {paired[1]}"

    def _id_columns(self, want: Any, got: Any, path: str, kind: str) -> Lines:
        if not (_are_ids(want) and _are_ids(got)) or type(want) is not type(got):
            yield from self(want, got, path)
            return
        theirs, ours = np.asarray(want), np.asarray(got)
        if _outline(theirs) != _outline(ours):
            yield f"{path}: {_outline(theirs)} / {_outline(ours)}"
            return
        for i, (one, other) in enumerate(zip(theirs.ravel().tolist(), ours.ravel().tolist(), strict=True)):
            lines = [*self._ids(Id(kind, one), Id(kind, other), f"{path}[{i}]")]
            if lines:
                yield from lines
                return

    def _sample_batches(self, want: SampleBatch, got: SampleBatch, path: str) -> Lines:
        yield from self._dicts(want, got, path)
        yield from self._dicts(vars(want), vars(got), f"{path}.__dict__")

    def _attributes(self, want: Any, got: Any, path: str) -> Lines:
        theirs, ours = vars(want), vars(got)
        if [*theirs] != [*ours]:
            yield f"{path}: attributes {[*theirs]} / {[*ours]}"
        for name in theirs:
            if name in ours:
                yield from self(theirs[name], ours[name], f"{path}.{name}")

    def _metrics(self, want: RolloutMetrics, got: RolloutMetrics, path: str) -> Lines:
        for name in want._fields:
            theirs, ours, at = getattr(want, name), getattr(got, name), f"{path}.{name}"
            if name in ("perf_stats", "connector_metrics"):
                yield from self._clocks(theirs, ours, at)
            else:
                yield from self(theirs, ours, at)

    def _clocks(self, want: Any, got: Any, path: str) -> Lines:
        """Names and types; readings are any number from 0 on."""
        if type(want) is not type(got):
            yield f"{path}: {_short(want)} / {_short(got)}"
        elif isinstance(want, dict):
            if [*want] != [*got]:
                yield f"{path}: keys {[*want]} / {[*got]}"
            for name in want.keys() & got.keys():
                yield from self._clocks(want[name], got[name], f"{path}[{name!r}]")
        elif not math.isnan(want) and not got >= 0:
            yield f"{path}: {want} / {got}"

    def _configs(self, want: AlgorithmConfig, got: AlgorithmConfig, path: str) -> Lines:
        yield from self._values(want._is_frozen, got._is_frozen, f"{path}._is_frozen")
        yield from self._dicts(want.to_dict(), got.to_dict(), path)

    def _dicts(self, want: dict, got: dict, path: str) -> Lines:
        if isinstance(want, defaultdict):
            yield from self._factories(want.default_factory, got.default_factory, f"{path}.default_factory")
        if [*map(_key, want)] != [*map(_key, got)]:
            yield f"{path}: {_differing_keys([*want], [*got])}"
        for name in want:
            if name in got:
                theirs, ours = dict.__getitem__(want, name), dict.__getitem__(got, name)
                at = f"{path}[{name!r}]"
                ids = name in ID_COLUMNS
                yield from self._id_columns(theirs, ours, at, name) if ids else self(theirs, ours, at)

    def _factories(self, want: Any, got: Any, path: str) -> Lines:
        """Return the objects that factories make; classes must be the same."""
        if any(one is None or isinstance(one, type) for one in (want, got)):
            yield from self._values(want, got, path)
        else:
            yield from self(want(), got(), f"{path}()")

    def _sets(self, want: Any, got: Any, path: str) -> Lines:
        if {*map(_key, want)} != {*map(_key, got)}:
            yield f"{path}: {want} / {got}"

    def _sequences(self, want: Any, got: Any, path: str) -> Lines:
        if len(want) != len(got):
            yield f"{path}: {type(want).__name__} of {len(want)} / {type(got).__name__} of {len(got)}"
        if len(want) == 2 == len(got) and {*map(type, (*want, *got))} == {str, bytes} and want[0] == STATE_BUFFER:
            yield from self(cloudpickle.loads(want[1]), cloudpickle.loads(got[1]), f"{path}[states]")
            return
        for i, (theirs, ours) in enumerate(zip(want, got, strict=False)):
            yield from self(theirs, ours, f"{path}[{i}]")

    def _arrays(self, want: np.ndarray, got: np.ndarray, path: str) -> Lines:
        theirs, ours = _outline(want), _outline(got)
        if theirs != ours:
            yield f"{path}: {theirs} / {ours}"
        elif want.dtype == object:
            yield from self._sequences(want.ravel().tolist(), got.ravel().tolist(), path)
        elif want.tobytes() != got.tobytes():
            yield f"{path}: {_first_difference(want, got)}"

    def _tensors(self, want: torch.Tensor, got: torch.Tensor, path: str) -> Lines:
        yield from self._values(want.requires_grad, got.requires_grad, f"{path}.requires_grad")
        yield from self._arrays(want.detach().cpu().numpy(), got.detach().cpu().numpy(), path)

    def _spaces(self, want: gymnasium.Space, got: gymnasium.Space, path: str) -> Lines:
        if want != got or want.dtype != got.dtype:
            yield f"{path}: {want} / {got}"

    def _texts(self, want: Text, got: Text, path: str) -> Lines:
        theirs, ours = (LONG_NUMBER.findall(text) for text in (want, got))
        for one, other in zip(theirs, ours, strict=False):
            yield from self._ids(Id("eps_id", int(one)), Id("eps_id", int(other)), path)
        plain = [ADDRESS.sub("0x", LONG_NUMBER.sub("<id>", text)) for text in (want, got)]
        if plain[0] != plain[1]:
            yield f"{path}: {_short(plain[0])} / {_short(plain[1])}"

    def _types(self, want: Any, got: Any, path: str) -> Lines:
        yield from ()

    def _values(self, want: Any, got: Any, path: str) -> Lines:
        # By repr, as nan is nan and 0.0 is not -0.0.
        if type(want) is not type(got) or (want is not got and repr(want) != repr(got)):
            yield f"{path}: {_short(want)} / {_short(got)}"


def _key(key: Any) -> tuple[type, Any]:
    return (type(key), key)


def _differing_keys(want: list, got: list) -> str:
    missing, more = [key for key in want if key not in got], [key for key in got if key not in want]
    if missing or more:
        return f"keys {missing} are missing, {more} are too many"
    return f"keys in another order, or of another type: {want} / {got}"


def _are_ids(column: Any) -> bool:
    if isinstance(column, list):
        return all(type(one) is int for one in column)
    return isinstance(column, np.ndarray) and column.dtype.kind in "iuf"


def _outline(array: np.ndarray) -> str:
    return f"{type(array).__name__} {array.dtype.str}{[*array.shape]}{'' if array.flags.writeable else ' read-only'}"


def _first_difference(want: np.ndarray, got: np.ndarray) -> str:
    flat = [np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, -1) for array in (want, got)]
    where = np.flatnonzero((flat[0] != flat[1]).any(axis=1))
    index = tuple(map(int, np.unravel_index(where[0], want.shape)))
    return f"{len(where)} of {want.size} differ, first at {index}: {want[index]!r} / {got[index]!r}"


def _short(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.160}"
