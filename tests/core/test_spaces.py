"""Spaces to leaves and back."""

import gymnasium as gym
import numpy as np
import pytest

from fastmarl.core.spaces.layout import RowLayout, leaf_spaces, with_leaf_spaces
from fastmarl.core.spaces.structs import flatten_struct, map_struct
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
def test_what_has_no_leaves_cannot_be_recorded(space):
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
