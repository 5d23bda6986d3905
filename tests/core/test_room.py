"""Blocks are as large as a call needs before it begins; their memory goes round."""

import gc
import sys

import numpy as np
import pytest

import fastmarl
from fastmarl.core.store.block import Block
from fastmarl.core.store.memory import KEPT_MEMORIES, MUCH_LARGER, LeasedArray, MemoryRing
from fastmarl.core.store.room import MOST_IN_DOUBT, MOST_RESERVED, Expectation, Room
from fastmarl.testing import CountingEnv

# The ring.


def lend(ring, size):
    """An array in lent memory, which holds it."""
    memory, lease = ring.lend(size)
    array = memory.arrays.setdefault("x", np.zeros(memory.size, np.uint8))
    return np.asarray(LeasedArray(array, lease)), memory


@pytest.mark.slow
def test_memory_is_not_lent_while_held_and_comes_back_when_dropped():
    ring = MemoryRing()
    held, memory = lend(ring, 100)
    view = held[3:5]
    del held
    other = lend(ring, 100)
    assert other[1] is not memory
    del view
    gc.collect()
    assert lend(ring, 100)[1] is memory


def test_memory_is_lent_first_in_first_out():
    ring = MemoryRing()
    (a, lease_a), (b, lease_b), (c, lease_c) = (ring.lend(100) for _ in range(3))
    del lease_b, lease_c, lease_a
    again = [ring.lend(100) for _ in range(3)]
    assert [memory for memory, _ in again] == [b, c, a]


def test_memory_returns_without_running_python():
    """An interrupt that came there would be lost, as all that finalizers raise."""
    ring, calls = MemoryRing(), []
    held, memory = lend(ring, 100)
    sys.setprofile(lambda frame, event, argument: calls.append((event, frame.f_code.co_qualname)))
    del held
    sys.setprofile(None)
    assert [name for event, name in calls if event == "call"] == []
    assert lend(ring, 100)[1] is memory


@pytest.mark.parametrize(
    ("wanted", "is_same"), [(100, True), (105, False), (100 // MUCH_LARGER - 2, False), (20, True)]
)
def test_memory_that_is_too_small_or_much_larger_stays_where_it_is(wanted, is_same):
    ring = MemoryRing()
    memory, lease = ring.lend(100)
    memory.size = 100
    del lease
    assert (ring.lend(wanted)[0] is memory) == is_same


def test_a_little_more_than_last_time_finds_room():
    ring, sizes = MemoryRing(), []
    for size in range(1030, 1150):
        memory, lease = ring.lend(size)
        sizes.append(memory.size)
        assert size <= memory.size <= size * 1.125
        del lease
    assert len(set(sizes)) == 1


@pytest.mark.slow
def test_few_idle_memories_are_kept():
    ring = MemoryRing()
    held = [lend(ring, 100) for _ in range(3 * KEPT_MEMORIES)]
    memories = {id(memory) for _, memory in held}
    assert len(memories) == len(held)
    held.clear()
    gc.collect()
    assert len(ring._idle) == KEPT_MEMORIES


# What is expected.


@pytest.mark.parametrize("n_modules", [1, 3])
@pytest.mark.parametrize("of_agents", [False, True])
def test_a_call_never_has_more_rows_than_expected(n_modules, of_agents):
    expectation = Expectation([3, 2], n_modules)
    expectation.begin_call(40, of_agents=of_agents)
    rows, finals = expectation.room(0, 7, 0, 100)
    assert rows >= 7 + (40 if of_agents else 3 * 40)
    assert finals == rows


def test_undeclared_agents_are_expected_to_be_as_many_as_now():
    expectation = Expectation([0, 0], 1)
    expectation.begin_call(40, of_agents=False)
    assert expectation.room(0, 0, 0, 100) == Room(0, 0)
    assert 5 * 20 <= expectation.room(0, 0, 5, 100).rows <= 5 * 25


def test_room_for_agents_that_may_join_is_bounded():
    expectation = Expectation([100] * 10, 7)
    expectation.begin_call(10**5, of_agents=False)
    large = 1000
    assert expectation.room(0, 0, 0, large) == Room(MOST_IN_DOUBT // large, MOST_IN_DOUBT // large)
    assert expectation.room(0, 0, 20, large).rows >= 20 * 10**4  # these are there


@pytest.mark.parametrize("n_modules", [1, 2])
@pytest.mark.parametrize("of_agents", [False, True])
def test_a_call_without_end_takes_a_bounded_room(n_modules, of_agents):
    expectation = Expectation([10], n_modules)
    expectation.begin_call(10**12, of_agents=of_agents)
    assert expectation.room(0, 5, 10, 1000).rows == MOST_RESERVED // 1000


def test_complete_episodes_take_the_room_of_earlier_ones():
    expectation = Expectation([2, 2], 1)
    expectation.begin_call(None, of_agents=False)
    assert expectation.room(0, 0, 4, 100).rows >= 2 * 2 * 1000
    expectation.note(0, 300, 20)
    expectation.note(0, 200, 30)
    assert expectation.room(0, 0, 4, 100) == Room(300, 30)


# In a runner.


@pytest.fixture
def growths(monkeypatch):
    """[rows that were copied] of all blocks that had too little room."""
    copied = []

    def watched(name, written):
        original = getattr(Block, name)

        def bind(block, capacity):
            if getattr(block.rows, written):
                copied.append(getattr(block.rows, written))
            original(block, capacity)

        monkeypatch.setattr(Block, name, bind)

    watched("_bind", "n")
    watched("_bind_finals", "n_finals")
    return copied


def two_modules(agent_id, episode):
    return "even" if int(agent_id[-1]) % 2 == 0 else "odd"


KINDS = {
    "dicts": {"env": lambda config: CountingEnv(num_agents=8, episode_length=7)},
    "two modules": {
        "env": lambda config: CountingEnv(num_agents=8, episode_length=7),
        "policies": {"even": None, "odd": None},
        "policy_mapping_fn": two_modules,
    },
    "arrays": {"env": "fastmarl.simple_spread"},
    "in turn": {"env": lambda config: CountingEnv(num_agents=8, episode_length=7), "worker_num_splits": 2},
    "agent steps": {"env": lambda config: CountingEnv(num_agents=8, episode_length=7), "count_steps_by": "agent_steps"},
    "lookback": {"env": lambda config: CountingEnv(num_agents=8, episode_length=90), "episode_lookback_horizon": 30},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_timesteps", [1, 64, 8 * 300])
def test_no_block_grows_in_a_call_of_so_many_steps(kind, num_timesteps, growths):
    config = fastmarl.EnvRunnerConfig(
        num_envs_per_env_runner=8, seed=0, model_config={"fcnet_hiddens": [4]}, **KINDS[kind]
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    for _ in range(3):
        runner.sample(num_timesteps=num_timesteps)
        assert not growths
    runner.stop()


def test_lanes_of_episodes_that_are_not_summed_up_serve_later_calls():
    runner = fastmarl.MultiAgentEnvRunner(
        fastmarl.EnvRunnerConfig(env=lambda config: CountingEnv(2, 3), metrics_num_episodes_for_smoothing=1)
    )
    table, n_lanes = runner._sampling.rollout.table, []
    for _ in range(4):
        runner.sample(num_episodes=20)
        n_lanes.append(len(table.row_L))
    assert n_lanes == [n_lanes[0]] * 4


def test_a_longer_call_than_before_makes_room_once_before_it_begins(growths):
    config = fastmarl.EnvRunnerConfig(num_envs_per_env_runner=8, model_config={"fcnet_hiddens": [4]}, **KINDS["dicts"])
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample(num_timesteps=400)
    runner.sample(num_timesteps=8000)
    runner.stop()
    assert len(growths) == 1


def test_complete_episodes_grow_at_most_once(growths):
    config = fastmarl.EnvRunnerConfig(
        num_envs_per_env_runner=8, batch_mode="complete_episodes", model_config={"fcnet_hiddens": [4]}, **KINDS["dicts"]
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    runner.sample()
    assert not growths
    runner.sample(num_episodes=16)
    runner.stop()
    assert len(growths) <= 2  # rows, and final observations
