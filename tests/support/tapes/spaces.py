"""Spaces of every kind, values in them, and how to look into nested ones."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

Box, Discrete, Dict, Tuple = gym.spaces.Box, gym.spaces.Discrete, gym.spaces.Dict, gym.spaces.Tuple


def _box(dtype: type, *shape: int) -> gym.Space:
    if np.issubdtype(dtype, np.floating):
        return Box(-np.inf, np.inf, shape, dtype)
    return Box(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype)


OBSERVATIONS: dict[str, Callable[[], gym.Space]] = {
    "vector": lambda: _box(np.float32, 3),
    "double": lambda: _box(np.float64, 2, 2),
    "half": lambda: _box(np.float16, 5),
    "number": lambda: _box(np.float32),
    "image": lambda: _box(np.uint8, 4, 3, 2),
    "words": lambda: _box(np.int16, 3),
    "longs": lambda: Box(-(2**50), 2**50, (2,), np.int64),
    "nothing": lambda: _box(np.float32, 0),
    "nothing wide": lambda: _box(np.uint8, 0, 300),
    "choice": lambda: Discrete(7),
    "choices": lambda: gym.spaces.MultiDiscrete([3, 200]),
    "bits": lambda: gym.spaces.MultiBinary(9),
    "dict": lambda: Dict(
        {"b": _box(np.float64, 2), "a": Discrete(4), "c": Tuple([_box(np.int8, 3), _box(np.uint8, 2, 2)])}
    ),
    "tuple": lambda: Tuple([_box(np.float32, 2), Dict({"x": _box(np.float32, 0), "y": gym.spaces.MultiBinary(2)})]),
}
ACTIONS: dict[str, Callable[[], gym.Space]] = {
    "discrete": lambda: Discrete(5),
    "multi": lambda: gym.spaces.MultiDiscrete([2, 3]),
    "box": lambda: Box(np.float32([-2, 0]), np.float32([2, 8])),
    "unbounded": lambda: Box(-np.inf, np.inf, (3,), np.float32),
    "tuple": lambda: Tuple([Discrete(3), Box(-1, 1, (2,), np.float32)]),
    "dict": lambda: Dict({"move": Discrete(4), "say": gym.spaces.MultiDiscrete([2, 2])}),
}


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """(path, leaf) of nested dicts, by sorted keys, and tuples."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from leaves(value[key], (*path, key))
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))
    else:
        yield path, value


def leaf_spaces(space: gym.Space, path: tuple = ()) -> Iterator[tuple[tuple, gym.Space]]:
    """Yield the leaves of a space with their paths."""
    if isinstance(space, Dict):
        for key in sorted(space.spaces):
            yield from leaf_spaces(space[key], (*path, key))
    elif isinstance(space, Tuple):
        for i, item in enumerate(space.spaces):
            yield from leaf_spaces(item, (*path, i))
    else:
        yield path, space


def draw(space: gym.Space, rng: random.Random) -> Any:
    """A value in the space; floats are multiples of 1/8, which every float type holds exactly."""
    if isinstance(space, Dict):
        return {key: draw(inner, rng) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(draw(inner, rng) for inner in space.spaces)
    if isinstance(space, Discrete):
        return rng.randrange(int(space.n))
    numbers = np.random.default_rng(rng.getrandbits(32))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return numbers.integers(space.nvec)
    if isinstance(space, gym.spaces.MultiBinary):
        return numbers.integers(2, size=space.shape, dtype=np.int8)
    if np.issubdtype(space.dtype, np.floating):
        return np.asarray(numbers.integers(-400, 401, space.shape) / 8, space.dtype)
    return np.asarray(numbers.integers(space.low, space.high, dtype=space.dtype, endpoint=True), space.dtype)


def copy(value: Any) -> Any:
    """Arrays of one's own, nested as they were."""
    if isinstance(value, dict):
        return {key: copy(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(copy(item) for item in value)
    return np.array(value)


def arrays(value: Any) -> list[np.ndarray]:
    """Those of the leaves that are arrays."""
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, np.ndarray)]


def number(value: Any) -> float:
    """One number that stands for all of a value: exact in float64, whatever the order of summation."""
    flat = [np.asarray(leaf, np.float64).ravel() for _, leaf in leaves(value)]
    numbers = np.concatenate(flat) if flat else np.zeros(0)
    return float(np.sum(np.fmod(numbers, 1024) * (1 + np.arange(len(numbers)) % 7)))


def same(got: Any, expected: Any) -> bool:
    """Equal values in equal nesting; dtypes may differ."""
    a, b = list(leaves(got)), list(leaves(expected))
    return [path for path, _ in a] == [path for path, _ in b] and all(
        np.shape(x) == np.shape(y) and np.array_equal(x, y) for (_, x), (_, y) in zip(a, b, strict=True)
    )
