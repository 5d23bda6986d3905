"""Completes the outputs of steps sampled in different modes (exploring, not exploring, random).

RLlib episodes need the same outputs in all steps; for the RLlib loop, extras.py does this.
"""

from itertools import accumulate
from operator import is_not
from typing import Any

import numpy as np

from fastmarl.core.spaces.columns import Columns
from fastmarl.core.store.block import Key, name_of
from fastmarl.rllib.episodes.extras import blank, summed
from fastmarl.rllib.episodes.lists import stacked
from fastmarl.rllib.episodes.sample_block import nested_outputs
from fastmarl.rllib.store.block import Outputs, RLlibBlock, is_state


def is_mixed(block: RLlibBlock, rows: np.ndarray) -> bool:
    """Return True if the outputs in the rows of an agent may differ."""
    return len(rows) > 0 and int(rows[0]) < len(block.former)


def mixed_steps(block: RLlibBlock, rows: np.ndarray) -> list[Outputs]:
    """Return the outputs of an agent's steps, with equal keys and ranks, or [] if all steps used the same mode.

    Args:
        block: Block of the module of the agent.
        rows: Rows of the agent that have acted, in order. They include the last row of a waiting agent, because RLlib
            adds its keys to the columns before the step is complete.
    """
    if not is_mixed(block, rows):
        return []
    return _completed([block.acted_with(row) for row in rows.tolist()])


def completed_rows(block: RLlibBlock, rows: np.ndarray) -> dict[int, Outputs]:
    """Return row -> outputs for the rows whose outputs are changed by mixed_steps()."""
    answers = [block.acted_with(row) for row in rows.tolist()]
    return {
        row: step
        for row, answer, step in zip(rows.tolist(), answers, _completed(answers), strict=True)
        if [*step] != [*answer] or any(map(is_not, step.values(), answer.values()))
    }


def mixed_outputs(steps: list[Outputs], lookback: int) -> tuple[Any, dict[str, Any]]:
    """Stack the result of mixed_steps() and return (actions, other outputs) as arrays [steps, ...]."""
    columns: dict[Key, Any] = {
        key: stacked([step[key] for step in steps], 0 if name_of(key) == Columns.ACTIONS else lookback)
        for key in steps[0]
    }
    return nested_outputs(columns, columns.pop(Columns.WEIGHTS_SEQ_NO, np.zeros(len(steps), np.int64)))


def mixed_items(steps: list[Outputs]) -> tuple[list[Any], dict[str, list[Any]]]:
    """Convert the result of mixed_steps() and return (actions, other outputs) as lists, as in the RLlib loop."""
    found = [as_nested(step) for step in steps]
    names = found[0][1]
    return [actions for actions, _ in found], {name: [extras[name] for _, extras in found] for name in names}


def as_nested(step: Outputs) -> tuple[Any, dict[str, Any]]:
    """Return (action, other outputs) of a step, nested as returned by the module."""
    outputs = dict(step)
    return nested_outputs(outputs, outputs.pop(Columns.WEIGHTS_SEQ_NO, 0))


def _completed(steps: list[Outputs]) -> list[Outputs]:
    """Fill in the outputs missing from each step, with NaN, or 0 for ints."""
    columns = {}
    for key in dict.fromkeys(key for step in steps for key in step):
        values = [step.get(key) for step in steps]
        columns[key] = _of_one_rank(_carried_on(values) if is_state(key) else values)
    return [dict(zip(columns, items, strict=True)) for items in zip(*columns.values(), strict=True)]


def _carried_on(values: list[Any]) -> list[Any]:
    """Fill in missing recurrent states with the previous one, or with zeros before the first."""
    zeros = np.zeros_like(next(value for value in values if value is not None))
    return list(accumulate(values, lambda before, value: before if value is None else value, initial=zeros))[1:]


def _of_one_rank(values: list[Any]) -> list[Any]:
    present = [value for value in values if value is not None]
    filled, like = [], present[0]
    for value in values:
        like = blank(like) if value is None else value
        filled.append(like)
    rank = min(map(np.ndim, present))
    # RLlib's deterministic log-probabilities have one number per action component.
    return [summed(value, rank) if np.ndim(value) > rank else value for value in filled]
