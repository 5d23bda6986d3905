"""The kinds of spaces that worlds have, and values in them."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

OBSERVATIONS: dict[str, Callable[[], gymnasium.Space]] = {
    "f32": lambda: Box(-1.0, 1.0, (3,), np.float32),
    "f64": lambda: Box(-1.0, 1.0, (3,), np.float64),
    "u8": lambda: Box(0, 255, (4,), np.uint8),
    "scalar": lambda: Box(-1.0, 1.0, (), np.float32),
    "image": lambda: Box(0, 255, (6, 5, 3), np.uint8),
    "pixels": lambda: Box(-1.0, 1.0, (10, 10, 3), np.float32),
    "frame": lambda: Box(-1.0, 1.0, (4, 5, 1), np.float32),
    "discrete": lambda: Discrete(5),
    "multidiscrete": lambda: MultiDiscrete([3, 4]),
    "multibinary": lambda: MultiBinary(4),
    "dict": lambda: Dict({"y": Box(-1.0, 1.0, (2,), np.float32), "x": Discrete(3)}),
    "tuple": lambda: Tuple((Box(-1.0, 1.0, (2,), np.float32), Discrete(3))),
    "nested": lambda: Dict({"a": Tuple((Box(0, 9, (2,), np.uint8), Discrete(2))), "b": Box(-1.0, 1.0, (2, 2))}),
    # Arrays that are not what the space says, or not as it is laid out.
    "says32gives64": lambda: Box(-1.0, 1.0, (3,), np.float32),
    "changing": lambda: Box(-1.0, 1.0, (3,), np.float32),
    "strided": lambda: Box(-1.0, 1.0, (3,), np.float32),
    "readonly": lambda: Box(-1.0, 1.0, (3,), np.float32),
}
FLAT = ("f32", "f64", "says32gives64", "changing", "strided", "readonly")
"""Kinds that RLlib's default modules take as they are."""
TO_FLATTEN = ("discrete", "multidiscrete", "multibinary", "dict", "tuple")
"""Kinds that they take through RLlib's FlattenObservations."""
OF_NUMBERS = ("scalar", "discrete", "nested", "changing")
"""Kinds that are no arrays of one dtype with axes."""

ACTIONS: dict[str, Callable[[], gymnasium.Space]] = {
    "discrete": lambda: Discrete(3),
    "start": lambda: Discrete(4, start=5),
    "multidiscrete": lambda: MultiDiscrete([3, 4]),
    "box": lambda: Box(-2.0, 3.0, (2,), np.float32),
    "box64": lambda: Box(-2.0, 3.0, (2,), np.float64),
    "unbounded": lambda: Box(-np.inf, np.inf, (2,), np.float32),
    "half": lambda: Box(np.array([-0.5, -np.inf], np.float32), np.array([0.5, 0.1], np.float32)),
    "scalar": lambda: Box(-1.0, 1.0, (), np.float32),
    "dict": lambda: Dict({"y": Box(-1.0, 1.0, (2,), np.float32), "x": Discrete(3)}),
    "tuple": lambda: Tuple((Discrete(2), Box(-3.0, 1.0, (1,), np.float32))),
}
SIMPLE_ACTIONS = ("discrete", "start", "box", "box64", "unbounded", "half")
"""Kinds of which RLlib knows the distribution without a catalog."""
ONE_EXPLORE = ("multidiscrete", "box", "box64", "unbounded", "half", "scalar", "dict", "tuple")
"""Kinds where the log probabilities of both ways to act don't fit into one episode."""
NESTED_ACTIONS = ("dict", "tuple")
"""Kinds that RLlib samples only with exploration, and without LSTM."""


def draw(kind: str, space: gymnasium.Space, rng: np.random.Generator) -> Any:
    """An observation of this kind, from `rng` alone."""
    value = _draw(space, rng)
    if kind == "says32gives64" or (kind == "changing" and rng.random() < 0.5):
        return value.astype(np.float64)
    if kind == "strided":
        return np.stack([value, -value], axis=1)[:, 0]
    if kind == "readonly":
        value.flags.writeable = False
    return value


def _draw(space: gymnasium.Space, rng: np.random.Generator) -> Any:
    if isinstance(space, Dict):
        return {name: _draw(part, rng) for name, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_draw(part, rng) for part in space.spaces)
    if isinstance(space, Discrete):
        return np.int64(rng.integers(space.n))
    if isinstance(space, MultiDiscrete):
        return rng.integers(space.nvec)
    if isinstance(space, MultiBinary):
        return rng.integers(2, size=space.shape, dtype=np.int8)
    if space.dtype == np.uint8:
        return rng.integers(space.high + 1, dtype=np.uint8) if space.high.max() < 255 else _bytes(space.shape, rng)
    return np.asarray(rng.uniform(-1.0, 1.0, space.shape), space.dtype)


def _bytes(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return rng.integers(256, size=shape, dtype=np.uint8)


def overwrite(old: Any, new: Any) -> Any:
    """Put `new` into the arrays of `old`, as envs with preallocated observations do; returns `old`."""
    if isinstance(old, dict):
        return {name: overwrite(old[name], new[name]) for name in new}
    if isinstance(old, tuple):
        return tuple(map(overwrite, old, new))
    if isinstance(old, np.ndarray) and old.dtype == new.dtype and old.flags.writeable:
        old[...] = new
        return old
    return new
