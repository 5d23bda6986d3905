"""Records the events of a run in order: calls of envs, mapping functions, modules, callbacks and connector pieces.

Envs, modules and callbacks are built by RLlib from their classes, so all of them write to the one tape of this module.
"""

from collections import Counter
from typing import Any

import numpy as np
import torch

Tape = dict[str, list[tuple]]
"""Channel -> its entries."""

_tape: Tape = {}
_counts: Counter[tuple] = Counter()


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
    if isinstance(value, dict):
        return (_name(value), *((freeze(key), freeze(part)) for key, part in value.items()))
    if isinstance(value, (list, tuple)):
        return (_name(value), *map(freeze, value))
    if isinstance(value, frozenset):
        return (_name(value), *map(freeze, sorted(value)))
    if isinstance(value, torch.Tensor):
        return ("Tensor", freeze(value.detach().numpy()))
    if isinstance(value, np.ndarray):
        return (_name(value), value.dtype.str, value.shape, value.flags.writeable, value.tobytes())
    if isinstance(value, np.generic):
        return (_name(value), value.dtype.str, value.tobytes())
    if isinstance(value, float):
        return ("float", repr(value))
    if value is None or isinstance(value, (bool, int, str)):
        return (_name(value), value)
    raise TypeError(f"don't know how to freeze {value!r}")


def _name(value: Any) -> str:
    return type(value).__name__
