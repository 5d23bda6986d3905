"""Records the events of a run in order: calls of envs, mapping functions, modules, callbacks and connector pieces.

Envs, modules and callbacks are built by RLlib from their classes, so all of them write to the one tape of this module.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Tape = dict[str, list[tuple]]
"""Channel -> its entries."""

ID_COLUMNS = ("eps_id", "unroll_id")
"""Columns of random or counted ids. What they are is by chance; which rows have the same one is not."""

_tape: Tape = {}
_counts: Counter[tuple] = Counter()


@dataclass(frozen=True)
class Id:
    """An id of this kind. Two runs agree on it if it pairs up with the other run's."""

    kind: str
    value: int

    def __str__(self) -> str:
        return str(self.value)


def start() -> Tape:
    """An empty tape, which takes all notes from now on."""
    global _tape
    _tape = {"env": [], "mapping": [], "forward": [], "callback": [], "pieces": []}
    _counts.clear()
    return _tape


def note(channel: str, *entry: Any) -> None:
    """Add `entry`; its parts must not change any more (`freeze` what may)."""
    _tape[channel].append(entry)
    _counts[channel, entry[0]] += 1


def count(channel: str, what: Any) -> int:
    """How many entries of the channel begin with `what`."""
    return _counts[channel, what]


def freeze(value: Any) -> Any:
    """A copy out of tuples that is equal to another only if types, dtypes, shapes, bytes and orders of keys are."""
    name = type(value).__name__
    if isinstance(value, dict):
        return (name, *((freeze(key), _entry(key, part)) for key, part in value.items()))
    if isinstance(value, (list, tuple)):
        return (name, *map(freeze, value))
    if isinstance(value, (set, frozenset)):
        return (name, *sorted(map(repr, value)))
    if isinstance(value, torch.Tensor):
        return ("Tensor", freeze(value.detach().cpu().numpy()))
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ("objects", value.shape, *map(freeze, value.ravel().tolist()))
        return (name, value.dtype.str, value.shape, value.flags.writeable, value.tobytes())
    if isinstance(value, np.generic):
        return (name, value.dtype.str, value.tobytes())
    if isinstance(value, float):
        return (name, repr(value))
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return (name, value)
    if isinstance(value, type):
        return ("class", value.__name__)
    if isinstance(value, Id):
        return value
    raise TypeError(f"don't know how to freeze {value!r}")


def _entry(key: Any, value: Any) -> Any:
    """An entry of a dict, of which the old stack's batches have columns of ids."""
    if key not in ID_COLUMNS:
        return freeze(value)
    if isinstance(value, (np.ndarray, torch.Tensor)):
        value = np.asarray(value)
        found = value.ravel().tolist()
        found = found[:1] if len({*found}) == 1 else found
        return ("ids", value.dtype.str, value.shape, *(Id(key, int(one)) for one in found))
    if isinstance(value, list):
        return ("ids", *(_entry(key, part) for part in value))
    return Id(key, value) if isinstance(value, int) else freeze(value)
