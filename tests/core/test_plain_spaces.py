"""Spaces through a checkpoint and back: the same to the last bit."""

import inspect

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trees import spoilt

from fastmarl.checkpoint import load_state, save_state
from fastmarl.core.spaces.layout import leaf_spaces
from fastmarl.core.spaces.plain import plain_space, space_from_plain
from fastmarl.errors import ConfigError

KINDS = {
    "floats": gym.spaces.Box(-1, 1, (3,), np.float32),
    "half": gym.spaces.Box(np.float16(0.1), np.float16(0.3), (2, 2), np.float16),
    "doubles": gym.spaces.Box(np.array([0.1, -np.inf]), np.array([np.pi, np.inf]), dtype=np.float64),
    "unbounded": gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
    "bounded on one side": gym.spaces.Box(-np.inf, 0.1, (4,), np.float32),
    "image": gym.spaces.Box(0, 255, (5, 4, 3), np.uint8),
    "unbounded integers": gym.spaces.Box(-np.inf, np.inf, (2,), np.int32),
    "wide integers": gym.spaces.Box(-(2**63), 2**62 + 1, (2,), np.int64),
    "unsigned": gym.spaces.Box(0, np.array([1, 2**64 - 1], np.uint64), (2,), np.uint64),
    "bools": gym.spaces.Box(0, 1, (2,), np.bool_),
    "a number": gym.spaces.Box(-1, 1, (), np.float32),
    "no numbers": gym.spaces.Box(-1, 1, (0,), np.float32),
    "another byte order": gym.spaces.Box(-1, np.array([1, 2], ">f8"), (2,), np.dtype(">f8")),
    "discrete": gym.spaces.Discrete(4, start=-2),
    "multidiscrete": gym.spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-2, 7]]),
    "multidiscrete, narrow": gym.spaces.MultiDiscrete([2, 3], dtype=np.int8),
    "multibinary": gym.spaces.MultiBinary(4),
    "multibinary, shaped": gym.spaces.MultiBinary((2, 3)),
    "dict, not sorted": gym.spaces.Dict([("b", gym.spaces.Discrete(2)), ("a", gym.spaces.MultiBinary(2))]),
    "dict of other keys": gym.spaces.Dict([(3, gym.spaces.Discrete(2)), ("$", gym.spaces.Tuple([]))]),
    "nested": gym.spaces.Tuple([gym.spaces.Dict({"x": gym.spaces.Tuple([gym.spaces.Box(0, 1, (2,))])})]),
}

if "dtype" in inspect.signature(gym.spaces.Discrete).parameters:  # not in Gymnasium 1.1
    KINDS["discrete, narrow"] = gym.spaces.Discrete(4, start=3, dtype=np.uint8)


def through_a_folder(space, folder):
    save_state(folder, plain_space(space))
    return space_from_plain(load_state(folder))


def assert_same_space(made, space):
    """Gymnasium finds Boxes equal whose bounds are close."""
    assert type(made) is type(space) and made == space
    if isinstance(space, gym.spaces.Dict):
        assert list(made.spaces) == list(space.spaces)
    for leaf, own in zip(leaf_spaces(made), leaf_spaces(space), strict=True):
        assert leaf.dtype == own.dtype and leaf.shape == own.shape and repr(leaf) == repr(own)
        for name in ("low", "high", "bounded_below", "bounded_above", "nvec", "start", "n"):
            assert hasattr(leaf, name) == hasattr(own, name)
            if hasattr(own, name):
                np.testing.assert_array_equal(getattr(leaf, name), getattr(own, name))
                assert np.asarray(getattr(leaf, name)).dtype == np.asarray(getattr(own, name)).dtype, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_space_comes_back_the_same(kind, tmp_path):
    assert_same_space(through_a_folder(KINDS[kind], tmp_path), KINDS[kind])


@given(low=st.floats(-(2.0**99), 0), width=st.floats(0, 2.0**99))
def test_any_bound_comes_back_the_same(low, width, tmp_path_factory):
    space = gym.spaces.Box(np.float32(low), np.float32(low) + np.float32(width), (2,))
    assert_same_space(through_a_folder(space, tmp_path_factory.mktemp("any")), space)


@pytest.mark.parametrize("space", [gym.spaces.Text(3), gym.spaces.Sequence(gym.spaces.Discrete(2))])
def test_other_spaces_are_saved_as_text_and_refused(space, tmp_path):
    for nesting in (space, gym.spaces.Dict({"a": space})):
        with pytest.raises(ConfigError, match=rf"the space {type(space).__name__}\(.*, whose type is not supported"):
            through_a_folder(nesting, tmp_path)


def test_damaged_data_is_refused_or_another_space():
    box = gym.spaces.Box(np.array([0.1, -3]), np.array([1.0, 2]), dtype=np.float64)
    data = plain_space(gym.spaces.Dict({"a": box, "b": KINDS["multidiscrete"], "c": KINDS["discrete"]}))
    n_refused = 0
    for _, changed in spoilt(data):
        try:
            space_from_plain(changed)
        except ConfigError:
            n_refused += 1
    assert n_refused > 50
