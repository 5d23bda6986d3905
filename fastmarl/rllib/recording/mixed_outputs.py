"""Outputs of steps that were not all made in the same mode (exploring or not, at random)."""

from itertools import accumulate
from typing import Any

import numpy as np

from fastmarl.columns import Columns
from fastmarl.record.block import Key
from fastmarl.rllib.episodes.extras import blank, summed
from fastmarl.rllib.episodes.lists import stacked
from fastmarl.rllib.episodes.sample_block import nested_outputs
from fastmarl.rllib.recording.block import Outputs, is_state


def mixed_outputs(steps: list[Outputs]) -> tuple[Any, dict[str, Any]]:
    """(actions, other outputs) as arrays [steps, ...]."""
    columns: dict[Key, Any] = {key: stacked(items) for key, items in _completed(steps).items()}
    return nested_outputs(columns, columns.pop(Columns.WEIGHTS_SEQ_NO, np.zeros(len(steps), np.int64)))


def mixed_items(steps: list[Outputs]) -> tuple[list[Any], dict[str, list[Any]]]:
    """(actions, other outputs) step by step, as RLlib's loop has them."""
    columns = _completed(steps)
    seq_nos = columns.pop(Columns.WEIGHTS_SEQ_NO, [0] * len(steps))
    found = [nested_outputs({key: items[i] for key, items in columns.items()}, seq_nos[i]) for i in range(len(steps))]
    names = found[0][1]
    return [actions for actions, _ in found], {name: [extras[name] for _, extras in found] for name in names}


def _completed(steps: list[Outputs]) -> dict[Key, list[Any]]:
    """Each output of all steps. Where a step lacks it: NaN, or 0 for ints."""
    columns = {}
    for key in dict.fromkeys(key for step in steps for key in step):
        values = [step.get(key) for step in steps]
        columns[key] = _of_one_rank(_carried_on(values) if is_state(key) else values)
    return columns


def _carried_on(values: list[Any]) -> list[Any]:
    """A recurrent state stays what it was in steps that the module did not make; it begins with zeros."""
    zeros = np.zeros_like(next(value for value in values if value is not None))
    return list(accumulate(values, lambda before, value: before if value is None else value, initial=zeros))[1:]


def _of_one_rank(values: list[Any]) -> list[Any]:
    present = [value for value in values if value is not None]
    filled, like = [], present[0]
    for value in values:
        like = blank(like) if value is None else value
        filled.append(like)
    rank = min(map(np.ndim, present))
    # RLlib's deterministic log-probabilities have one for each part of the action.
    return [summed(value, rank) if np.ndim(value) > rank else value for value in filled]
