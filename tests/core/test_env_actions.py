"""Raw actions as a module gives them -> what envs get, bit-identical to the formulas by NumPy."""

import gymnasium as gym
import numpy as np
import pytest

from fastmarl.core.connectors.env_actions import EnvActions

LOW, HIGH = np.array([[0, -2, 1]]), np.array([[9, 5.5, 1.25]])
BOXES = {
    "float32": gym.spaces.Box(LOW.astype(np.float32), HIGH.astype(np.float32)),
    "float64": gym.spaces.Box(LOW, HIGH, dtype=np.float64),
    "half bounded": gym.spaces.Box(LOW.astype(np.float32), np.float32(np.inf), (1, 3)),
    "a number": gym.spaces.Box(-3, 3, ()),
    "float16": gym.spaces.Box(-3, 3, (2,), np.float16),
    "integers": gym.spaces.Box(np.array([0, 100], np.uint8), np.array([9, 255], np.uint8), dtype=np.uint8),
}
OPTIONS = {
    "scaled": {"normalize": True, "clip": False},
    "clipped": {"normalize": False, "clip": True},
    "as they are": {"normalize": False, "clip": False},
}


def for_envs(actions, raw):
    actions.set(7, len(raw), {"actions": raw})
    rows, (array,) = actions.take()
    assert rows == slice(7, 7 + len(raw))
    return array


def changed(space, raw, *, normalize, clip):
    low, high = space.low, space.high
    if normalize and np.isfinite([low, high]).all():
        raw = np.clip(low + (raw + 1.0) * (high - low) / 2.0, low, high)
    elif clip and not normalize:
        raw = np.clip(raw, low, high)
    return raw.astype(space.dtype)


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_actions_of_a_box(rng, box, options, dtype):
    space, options = BOXES[box], OPTIONS[options]
    actions = EnvActions("p", space, **options, as_arrays=True)
    for n in (1, 40, 3):
        raw = np.asfortranarray((rng.normal(size=(n, *space.shape)) * 1.5).astype(dtype))
        if box == "integers":
            raw = abs(raw)  # what the others become depends on the machine
        before = raw.copy()
        expected, got = changed(space, raw, **options), for_envs(actions, raw)
        assert (got.dtype, got.shape, got.flags.c_contiguous) == (space.dtype, raw.shape, True)
        assert got.tobytes() == expected.tobytes()
        assert raw.tobytes() == before.tobytes()  # it goes on record


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(4),
        gym.spaces.Discrete(4, start=-3),
        gym.spaces.MultiDiscrete([3, 4]),
        gym.spaces.MultiDiscrete([[3], [4]], dtype=np.int8, start=[[-1], [9]]),
    ],
)
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_choices_begin_with_their_start(rng, space, dtype):
    actions = EnvActions("p", space, normalize=True, clip=True, as_arrays=True)
    for n in (1, 40, 3):
        raw = rng.integers(0, 3, (n, *space.shape)).astype(dtype)
        before, got = raw.copy(), for_envs(actions, raw)
        assert got.dtype == space.dtype
        np.testing.assert_array_equal(got, before.astype(np.int64) + space.start)
        np.testing.assert_array_equal(raw, before)
