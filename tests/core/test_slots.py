"""Values in shared memory are read as they were written; unfit values are refused and spoil nothing."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.differences import assert_same

from fastmarl.core.vector.workers.shm import Arrays
from fastmarl.core.vector.workers.slots import ResultSlots, action_slots

AGENTS = ["a", 1, ("b", 2), "d"]
SPACES = {
    "a": gym.spaces.Box(-9, 9, (2,), np.float32),
    1: gym.spaces.Discrete(6),
    ("b", 2): gym.spaces.Dict({"x": gym.spaces.Box(0, 255, (2, 2), np.uint8), "n": gym.spaces.MultiDiscrete([3, 4])}),
    "d": gym.spaces.Box(-9, 9, (0,), np.float64),
}
ACTIONS = {
    "a": gym.spaces.Discrete(4),
    1: gym.spaces.Box(-1, 1, (3,), np.float32),
    ("b", 2): gym.spaces.MultiBinary(2),
    "d": gym.spaces.Discrete(2),
}
SEEDS = st.integers(0, 2**32 - 1)


def new_slots(kind, spaces, *more):
    """Over memory that is full of rubbish."""

    def cut(shape, dtype):
        array = Arrays(None).cut(shape, dtype)
        array.reshape(-1).view(np.uint8)[:] = 0xA5
        return array

    return kind(spaces, *more, cut)


def some_of(rng, keys):
    return [keys[i] for i in rng.permutation(len(keys)) if rng.random() < 0.7]


def result(rng):
    """A step of some agents, in any order."""
    for space in SPACES.values():
        space.seed(int(rng.integers(2**31)))
    kinds = [float, int, bool, np.float32, np.int64, np.float64]
    obs = {agent: SPACES[agent].sample() for agent in some_of(rng, AGENTS)}
    rewards = {agent: kinds[rng.integers(6)](rng.integers(-3, 4)) for agent in some_of(rng, AGENTS)}
    flags = [
        {key: [bool, np.bool_][rng.integers(2)](rng.random() < 0.2) for key in some_of(rng, [*AGENTS, "__all__"])}
        for _ in range(2)
    ]
    return obs, rewards, *flags


@given(seed=SEEDS, n=st.integers(1, 8))
def test_results_are_read_as_they_were_written(seed, n):
    rng, slots = np.random.default_rng(seed), new_slots(ResultSlots, SPACES, None)
    for _ in range(n):
        written = result(rng)
        assert slots.write((*written, {}))
        obs, rewards, terminateds, truncateds, infos = slots.read({"a": {}})
        wanted = {agent: value if agent != 1 else np.array(value) for agent, value in written[0].items()}
        assert_same(obs, wanted)
        assert [list(part) for part in (obs, rewards, terminateds, truncateds)] == list(map(list, written))
        assert_same(rewards, {agent: float(reward) for agent, reward in written[1].items()})
        assert_same((terminateds, truncateds), tuple({k: bool(v) for k, v in part.items()} for part in written[2:]))
        assert infos == {"a": {}}


ODD = [
    (0, {"z": 1}),
    (0, {"__all__": np.zeros(2, np.float32)}),
    (0, {"a": np.zeros(3, np.float32)}),
    (0, {"a": np.zeros(2, complex)}),
    (0, {"a": "text"}),
    (0, {"a": None}),
    (0, {True: 3}),
    (0, {("b", 2): {"x": np.zeros((2, 2), np.uint8)}}),
    (0, {("b", 2): {"x": np.zeros((2, 2), np.uint8), "n": np.zeros(2, np.int64), "more": 0}}),
    (0, {("b", 2): 7}),
    (0, None),
    (0, [("a", 1)]),
    (1, {"a": None}),
    (1, {"a": np.array([1.0])}),
    (1, {"__all__": 1.0}),
    (1, {"a": 10**400}),
    (1, {"z": 1.0}),
    (2, {"a": 1}),
    (2, {"a": None, "__all__": False}),
    (3, {"z": False}),
]


@pytest.mark.parametrize(("part", "value"), ODD, ids=str)
def test_odd_values_are_refused_and_the_next_ones_are_right(rng, part, value):
    slots = new_slots(ResultSlots, SPACES, None)
    for _ in range(3):
        odd = [*result(rng)]
        odd[part] = value
        assert not slots.write((*odd, {}))
        written = result(rng)
        assert slots.write((*written, {}))
        assert [list(part) for part in slots.read({})[:4]] == list(map(list, written))
        assert slots.read({})[3] == written[3]


def test_observations_are_rounded_as_in_the_record():
    slots = new_slots(ResultSlots, SPACES, None)
    value = np.array([0.1, 1 / 3])
    for odd in (value, value.tolist(), value[::-1][::-1]):
        assert slots.write_reset(({"a": odd}, {}))
        assert_same(slots.read_reset({})[0], {"a": value.astype(np.float32)})


@given(seed=SEEDS, n=st.integers(1, 8))
def test_actions_are_read_as_they_were_written(seed, n):
    rng, slots = np.random.default_rng(seed), new_slots(action_slots, ACTIONS)
    numbers = new_slots(action_slots, {"a": ACTIONS["a"], "d": ACTIONS["d"]})
    for space in ACTIONS.values():
        space.seed(seed % 2**31)
    for _ in range(n):
        agents = some_of(rng, AGENTS)
        samples = {agent: ACTIONS[agent].sample() for agent in agents}
        actions = {a: value if value.shape else int(value) for a, value in samples.items()}
        assert slots.write(actions)
        read = slots.read()
        assert_same(read, actions)
        assert list(read) == agents
        for value in read.values():
            if isinstance(value, np.ndarray):
                value[:] = 0  # the env's own
        assert_same(slots.read(), actions)
        discrete = {agent: action for agent, action in actions.items() if type(action) is int}
        assert numbers.write(discrete)
        assert_same(numbers.read(), discrete)
    for odd in ({"z": 0}, {"a": np.float32(1)}, {"a": 2**70}, {1: np.zeros(2, np.float32)}, {"d": {"k": 1}}):
        assert not slots.write(odd)
        assert not numbers.write(odd)
