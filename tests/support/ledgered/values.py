"""Conversion of ledgers' values and learners' rows, and calls of modules one batch at a time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch


def predicted(module: Any, observations: Sequence[Any]) -> list[float]:
    """Return the value predictions of a feedforward module."""
    if not observations:
        return []
    with torch.no_grad():
        return module.forward_train({"obs": stacked(observations)})["vf_preds"].tolist()


def remembered(module: Any, observation: Any, memory: Any) -> tuple[float, Any]:
    """Return the value prediction of a module with memory, and its next memory."""
    sequence = mapped(lambda leaf: leaf[None], stacked([observation]))
    given = mapped(lambda leaf: torch.as_tensor(leaf)[None], memory)
    with torch.no_grad():
        outputs = module.forward_train({"obs": sequence, "state_in": given})
    return outputs["vf_preds"].item(), mapped(lambda leaf: leaf[0], outputs["state_out"])


def stacked(values: Sequence[Any]) -> Any:
    """Stack nested observations to tensors."""
    if isinstance(values[0], dict):
        return {key: stacked([each[key] for each in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stacked(inner) for inner in zip(*values, strict=True))
    array = np.stack([np.asarray(each) for each in values])
    return torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)


def counted(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with one row for each that counts in the loss."""
    mask = rows.get("loss_mask")
    names = rows.keys() - {"loss_mask", "env_state", "state_in"}
    return {name: rows[name] if mask is None else mapped(lambda leaf: leaf[mask], rows[name]) for name in names}


def mapped(function: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: mapped(function, each) for key, each in value.items()}
    return tuple(mapped(function, each) for each in value) if isinstance(value, tuple) else function(value)


def nth(column: Any, i: int) -> Any:
    return mapped(lambda leaf: leaf[i], column)


def leaves(value: Any) -> list[Any]:
    """Return the leaves of nested dicts, by sorted keys, and tuples."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value, key=str) for leaf in leaves(value[key])]
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, tuple) else [value]


def observed(observation: Any) -> bytes:
    """Return what identifies an observation."""
    return b"".join(np.asarray(leaf, np.float32).tobytes() for leaf in leaves(observation))


def numbers(action: Any) -> list[float]:
    return [float(number) for leaf in leaves(action) for number in np.ravel(leaf)]


def numbers_from_zero(space: gym.Space, action: Any) -> list[float]:
    """Return the numbers in an action as a module chooses it, whose choices begin at 0."""
    pairs = zip(space.spaces, action, strict=True) if isinstance(space, gym.spaces.Tuple) else [(space, action)]
    return numbers(tuple(np.asarray(each) - getattr(inner, "start", 0) for inner, each in pairs))


def as_sent(space: gym.Space, action: Any) -> list[float]:
    """Return the numbers in a recorded action, clipped to the bounds of continuous parts as for the environment."""
    pairs = zip(space.spaces, action, strict=True) if isinstance(space, gym.spaces.Tuple) else [(space, action)]
    return numbers(
        tuple(
            np.clip(np.asarray(each), inner.low, inner.high) if isinstance(inner, gym.spaces.Box) else each
            for inner, each in pairs
        )
    )


def finite(values: Iterable[Any]) -> None:
    for value in values:
        assert torch.isfinite(torch.as_tensor(value)).all(), value
