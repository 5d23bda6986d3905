"""Lists what is not bit-identical between two values: a readable line a difference, with the path to it.

Comparisons of two runs have this as their base, and add what is particular to them: rules for more classes, and what
they compare otherwise, each with its reason.
"""

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice, zip_longest
from typing import Any

import gymnasium
import numpy as np
import torch

Lines = Iterator[str]
Rule = Callable[[Any, Any, str], Lines]
Kind = type | tuple[type, ...]

PLAIN = (str, bytes, bool, int, type(None))


def assert_same(got: Any, want: Any, where: str = "value") -> None:
    """Check for equal types, order of keys, dtypes, shapes and bits."""
    line = next(Differences()(want, got, where), None)
    assert line is None, line


def is_same(one: Any, other: Any) -> bool:
    """Return true if `assert_same()` passes."""
    return not any(Differences()(other, one, ""))


class Differences:
    """Compares two values part by part. It knows which id of the one is which id of the other.

    Args:
        rules: how values of some kinds are compared; they come before those of all comparisons.
    """

    subclassed: tuple[type, ...] = ()
    """Kinds in which the two may be of different classes."""

    def __init__(self, *rules: tuple[Kind, Rule]) -> None:
        self._rules: list[tuple[Kind, Rule]] = [
            *rules,
            (dict, self.dicts),
            ((set, frozenset), self.sets),
            ((list, tuple), self.sequences),
            (np.ndarray, self.arrays),
            (torch.Tensor, self.tensors),
            (gymnasium.Space, self.spaces),
        ]
        self._rule_of: dict[tuple[type, type], Rule] = {}
        self._same_spaces: dict[tuple[int, int], tuple[gymnasium.Space, gymnasium.Space]] = {}
        self._their_id: dict[Hashable, Hashable] = {}
        self._our_id: dict[Hashable, Hashable] = {}

    def __call__(self, want: Any, got: Any, path: str) -> Lines:
        """The differences between two values of any kind."""
        kinds = type(want), type(got)
        if kinds not in self._rule_of:
            self._rule_of[kinds] = self._rule(*kinds)
        return self._rule_of[kinds](want, got, path)

    def _rule(self, want: type, got: type) -> Rule:
        """The first one for both; different types differ."""
        if want is not got and not all(issubclass(kind, self.subclassed) for kind in (want, got)):
            return self.values
        return next((rule for kind, rule in self._rules if issubclass(want, kind) and issubclass(got, kind)), self.rest)

    def dicts(self, want: dict, got: dict, path: str, *, attributes: bool = False) -> Lines:
        """Entries in the same order."""
        if isinstance(want, defaultdict) and isinstance(got, defaultdict):
            yield from self.factories(want.default_factory, got.default_factory, f"{path}.default_factory")
        if [*map(_key, want)] != [*map(_key, got)]:
            yield f"{path}: {_differing_keys([*want], [*got])}"
        for name in want:
            if name in got:
                # RLlib's SampleBatch notes who reads it by its own method.
                theirs, ours = dict.__getitem__(want, name), dict.__getitem__(got, name)
                if attributes:
                    yield from self(theirs, ours, f"{path}.{name}")
                else:
                    yield from self.entry(name, theirs, ours, f"{path}[{name!r}]")

    def entry(self, name: Any, want: Any, got: Any, path: str) -> Lines:
        """Two entries of dicts."""
        return self(want, got, path)

    def factories(self, want: Any, got: Any, path: str) -> Lines:
        return self.values(want, got, path)

    def attributes(self, want: Any, got: Any, path: str) -> Lines:
        return self.dicts(vars(want), vars(got), path, attributes=True)

    def sets(self, want: Any, got: Any, path: str) -> Lines:
        if {*map(_key, want)} != {*map(_key, got)}:
            yield f"{path}: {want} / {got}"

    def sequences(self, want: Any, got: Any, path: str) -> Lines:
        if len(want) != len(got):
            yield f"{path}: {type(want).__name__} of {len(want)} / {type(got).__name__} of {len(got)}"
        for i, (theirs, ours) in enumerate(zip(want, got, strict=False)):
            yield from self(theirs, ours, f"{path}[{i}]")

    def arrays(self, want: np.ndarray, got: np.ndarray, path: str) -> Lines:
        theirs, ours = self.outline(want), self.outline(got)
        if theirs != ours:
            yield f"{path}: {theirs} / {ours}"
        elif want.dtype == object:
            yield from self.sequences(want.ravel().tolist(), got.ravel().tolist(), path)
        elif want.tobytes() != got.tobytes():
            yield f"{path}: {_first_difference(want, got)}"

    def outline(self, array: np.ndarray) -> str:
        read_only = "" if array.flags.writeable else " read-only"
        return f"{type(array).__name__} {array.dtype.str}{[*array.shape]}{read_only}"

    def tensors(self, want: torch.Tensor, got: torch.Tensor, path: str) -> Lines:
        yield from self.values(want.requires_grad, got.requires_grad, f"{path}.requires_grad")
        yield from self.arrays(want.detach().cpu().numpy(), got.detach().cpu().numpy(), path)

    def spaces(self, want: gymnasium.Space, got: gymnasium.Space, path: str) -> Lines:
        """Hundreds of episodes hold the same few: a pair is compared once, and kept, so that its ids stay its own."""
        if (id(want), id(got)) in self._same_spaces:
            return
        if want != got or want.dtype != got.dtype:
            yield f"{path}: {want} / {got}"
        else:
            self._same_spaces[id(want), id(got)] = want, got

    def rest(self, want: Any, got: Any, path: str) -> Lines:
        """Two values of a type for which there is no rule."""
        return self.values(want, got, path)

    def values(self, want: Any, got: Any, path: str) -> Lines:
        if type(want) is not type(got) or (want is not got and _bits(want) != _bits(got)):
            yield f"{path}: {self.short(want)} / {self.short(got)}"

    def ids(self, want: Any, got: Any, path: str) -> Lines:
        """Two random ids, if both are strings."""
        return (self.pairs if type(want) is type(got) is str else self.values)(want, got, path)

    def pairs(self, want: Hashable, got: Hashable, path: str) -> Lines:
        """Two ids that mean nothing beyond being equal or not: they must pair up one to one over the whole run."""
        paired = self._our_id.setdefault(want, got), self._their_id.setdefault(got, want)
        if paired != (got, want):
            yield f"{path}: id {want} / {got}, but before these were those of {paired[0]} and {paired[1]}"

    def clocks(self, want: Any, got: Any, path: str) -> Lines:
        """Readings of the clock, each from 0 on: set in the one if they are in the other, under the same names."""
        if type(want) is not type(got):
            yield from self.values(want, got, path)
        elif isinstance(want, dict):
            if [*want] != [*got]:
                yield f"{path}: {_differing_keys([*want], [*got])}"
            for name in want:
                if name in got:
                    yield from self.clocks(want[name], got[name], f"{path}[{name!r}]")
        elif want is not None and (math.isnan(want) != math.isnan(got) or got < 0):
            yield f"{path}: {want} / {got}"

    def events(self, want: list[tuple], got: list[tuple], path: str) -> Lines:
        """Two lists of events: the first that differs. All later ones follow from it."""
        for i, (theirs, ours) in enumerate(zip_longest(want, got)):
            lines = [*islice(self(theirs, ours, ""), 2)]
            if lines:
                called = theirs[:2] if theirs else ours[:2]
                head = f"{path}, entry {i} of {len(want)} / {len(got)}, {self.short(called)}"
                yield from (f"{head}{line}" for line in lines)
                return

    def short(self, value: Any) -> str:
        return f"{type(value).__name__} {value!r:.200}"


def shared_memory(arrays: Iterable[tuple[str, np.ndarray]]) -> set[tuple[str, str]]:
    """Pairs of paths to arrays that overlap in memory, so that writing to one changes the other."""
    ranges = [(*np.lib.array_utils.byte_bounds(array), path, array) for path, array in arrays]
    ranges.sort(key=lambda each: each[:2])
    found = set()
    earlier: list[tuple] = []  # the one before, and the widest so far, as a block may hold many
    for one in ranges:
        overlapped = (each for each in earlier if one[0] < each[1] and np.shares_memory(each[3], one[3]))
        found |= {(each[2], one[2]) for each in overlapped}
        earlier = [one, max([one, *earlier], key=lambda each: each[1])]
    return found


def _bits(value: Any) -> Any:
    """Something that is equal for equal bits only: nan equals itself, and 0.0 is not -0.0."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.dtype, value.tobytes()
    return struct.pack("d", value) if type(value) is float else repr(value)


def _key(key: Any) -> tuple[type, Any]:
    return (type(key), key)


def _differing_keys(want: list, got: list) -> str:
    missing, more = [key for key in want if key not in got], [key for key in got if key not in want]
    if missing or more:
        return f"keys {missing} are missing, {more} are too many"
    return f"keys in another order, or of another type: {want} / {got}"


def _first_difference(want: np.ndarray, got: np.ndarray) -> str:
    flat = [np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, -1) for array in (want, got)]
    where = np.flatnonzero((flat[0] != flat[1]).any(axis=1))
    index = tuple(map(int, np.unravel_index(where[0], want.shape)))
    return f"{len(where)} of {want.size} differ, first at {index}: {want[index]!r} / {got[index]!r}"
