"""Spaces to leaves and back."""

import math

import gymnasium as gym
import numpy as np
import pytest

from fastmarl.core.spaces.layout import RowLayout, leaf_spaces, with_leaf_spaces
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.core.spaces.values import unheld
from fastmarl.errors import ConfigError

BOX = gym.spaces.Box(0, 255, (2, 3), np.uint8)
NESTED = gym.spaces.Dict({"b": gym.spaces.Tuple((BOX, gym.spaces.Discrete(4))), "a": gym.spaces.Text(5)})


@pytest.mark.parametrize(
    ("space", "dtype", "shape"),
    [
        (BOX, np.uint8, (2, 3)),
        (gym.spaces.Discrete(3), np.int64, ()),
        (gym.spaces.MultiDiscrete([2, 3]), np.int64, (2,)),
        (gym.spaces.MultiBinary(4), np.int8, (4,)),
        (gym.spaces.Text(3), object, ()),
    ],
)
def test_plain_spaces_have_one_leaf(space, dtype, shape):
    (leaf,) = RowLayout(space).leaves
    assert (leaf.path, leaf.dtype, leaf.shape) == ((), np.dtype(dtype), shape)


def test_nested_spaces_keep_their_own_order_and_nesting():
    layout = RowLayout(NESTED)
    paths = {leaf.path: leaf.sizes for leaf in layout.leaves}
    assert paths == {("b", 0): (2, 2), ("b", 1): (2, 2), ("a",): (2,)}
    assert [leaf.path for leaf in layout.leaves] == [path for path, _ in flatten_struct(layout.nest(list("xyz")))]
    assert layout.nest([1, 2, 3]) == (
        {"a": 1, "b": (2, 3)} if next(iter(NESTED.spaces)) == "a" else {"b": (1, 2), "a": 3}
    )


@pytest.mark.parametrize("space", [gym.spaces.Dict({}), None, 3])
def test_spaces_without_leaves_cannot_be_recorded(space):
    with pytest.raises(ConfigError, match="space"):
        RowLayout(space)


def test_leaves_and_their_spaces_back_into_the_same_nesting():
    space = gym.spaces.Dict([("b", NESTED["b"]), ("a", BOX)])  # in this order, not sorted
    parts = leaf_spaces(space)
    assert parts == [BOX, gym.spaces.Discrete(4), BOX]
    other = with_leaf_spaces(space, [gym.spaces.Discrete(2), BOX, BOX])
    assert other == gym.spaces.Dict([("b", gym.spaces.Tuple((gym.spaces.Discrete(2), BOX))), ("a", BOX)])
    assert list(other.spaces) == ["b", "a"]
    layout = RowLayout(space)
    assert layout.leaves_of(layout.nest([1, 2, 3])) == [1, 2, 3]
    with pytest.raises(KeyError):
        layout.leaves_of({"b": (1, 2)})


def test_structs():
    value = {"x": (1, [2, 3]), "y": 4}
    assert flatten_struct(value) == [(("x", 0), 1), (("x", 1, 0), 2), (("x", 1, 1), 3), (("y",), 4)]
    assert map_struct(lambda leaf: -leaf, value) == {"x": (-1, (-2, -3)), "y": -4}


NUMBERS = [np.dtype(code) for code in "?bBhHiIqQefdFD"]


def held(dtype, number):
    """Say in Python's exact numbers whether a dtype holds a number; floats may lose digits."""
    if isinstance(number, complex):
        if dtype.kind != "c":
            return number.imag == 0 and held(dtype, number.real)
        parts = np.dtype(f"f{dtype.itemsize // 2}")
        return held(parts, number.real) and held(parts, number.imag)
    if dtype.kind == "b":
        return number in (0, 1)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return math.isfinite(number) and number == int(number) and int(limits.min) <= number <= int(limits.max)
    with np.errstate(over="ignore"):
        made = complex(np.array(number).astype(dtype)).real
    return made == number if isinstance(number, int) else math.isfinite(made) or not math.isfinite(number)


@pytest.mark.parametrize("given", NUMBERS, ids=str)
def test_numbers_that_a_dtype_can_not_hold(given):
    numbers = [0.0, 1.0, -1.0, 0.5, 300.0, -129.0, 1e5, 1e30, 1e300, math.inf, -math.inf, math.nan, 2.0**63, 2.0**64]
    numbers += [
        2**24 + 1,
        2**53 + 1,
        2**63 - 1,
        2**63,
        2**64 - 1,
        -(2**63),
        127,
        128,
        255,
        65504,
        65505,
        2 + 3j,
        4 + 0j,
    ]
    with np.errstate(all="ignore"):
        of_dtype = [np.array(number).astype(given) for number in numbers if given.kind == "c" or np.isrealobj(number)]
    values = np.array(of_dtype, given)
    for dtype in NUMBERS:
        wanted = [not held(dtype, number.item()) for number in values]
        assert unheld(dtype, values).tolist() == wanted, dtype


def test_texts_and_objects_that_a_dtype_can_not_hold():
    texts = np.array(["ab", "abc"])
    assert unheld(np.dtype("U2"), texts).tolist() == [False, True]
    assert unheld(np.dtype(np.int64), np.array(["1", "2"])).all()
    assert unheld(np.dtype("U9"), np.array([1, 2])).all()
    assert unheld(np.dtype(np.float64), np.array([None, 1.0])).all()
    assert not unheld(np.dtype(object), texts).any()
