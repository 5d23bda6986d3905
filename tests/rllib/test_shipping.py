"""Sampled episodes: their agents' parts are made late, they travel as one block, and their memory is their own."""

import copy
import pickle

import numpy as np
import pytest
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner

from benchmarks.rllib.cases import cartpole
from benchmarks.rllib.equality import check_equal
from benchmarks.rllib.pair import seed_everything
from fastmarl.rllib import MultiAgentEnvRunner
from fastmarl.rllib.episodes.episode import LATE, is_set
from fastmarl.rllib.store.builder import ColumnMemory

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own

CASE = cartpole(agents=3, envs=2, hiddens=(8,))


def sampled(runner_class, calls=1):
    """Return the episodes of `calls` calls of sample()."""
    seed_everything(3)
    runner = runner_class(config=CASE.config())
    samples = [runner.sample(num_timesteps=150) for _ in range(calls)]
    runner.stop()
    return samples


@pytest.fixture
def theirs():
    return sampled(RLlibEnvRunner)[0]


@pytest.fixture
def episodes():
    return sampled(MultiAgentEnvRunner)[0]


def is_made(episode):
    return [name for name in LATE if is_set(episode, name)]


def travelled(episodes):
    """As through the object store: buffers out of band, and read-only when they arrive."""
    buffers = []
    data = pickle.dumps(episodes, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers]), len(buffers)


def test_parts_are_made_at_the_first_look(theirs, episodes):
    assert not any(is_made(episode) for episode in episodes)
    first = episodes[0]
    parts = first.agent_episodes
    assert is_made(first) == ["agent_episodes", "env_t_to_agent_t"]
    assert first.agent_episodes is parts
    assert first.env_t_to_agent_t is first.env_t_to_agent_t
    check_equal(theirs, episodes)


def test_other_attributes_are_missing_as_ever(episodes):
    with pytest.raises(AttributeError, match="no attribute 'agent_episode'"):
        _ = episodes[0].agent_episode
    assert not hasattr(object.__new__(type(episodes[0])), "agent_episodes")


def test_agent_episodes_set_by_hand_stay(episodes):
    episode = episodes[0]
    episode.agent_episodes = {}
    assert episode.env_t_to_agent_t
    assert episode.agent_episodes == {}


@pytest.mark.parametrize("look", ["never", "before", "after"])
def test_one_block_travels(theirs, episodes, look):
    if look == "before":
        for episode in episodes:
            assert episode.agent_episodes
    arrived, n_buffers = travelled(episodes)
    assert 2 * n_buffers < travelled(theirs)[1]  # columns of modules, not of agents
    assert not any(is_made(episode) for episode in arrived)
    check_equal(theirs, arrived)
    if look == "after":
        check_equal(theirs, episodes)


def test_a_second_trip_from_where_it_arrived(theirs, episodes):
    check_equal(theirs, travelled(travelled(episodes)[0])[0])


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy])
def test_copies(theirs, episodes, make_copy):
    check_equal(theirs, [make_copy(episode) for episode in episodes])
    check_equal(theirs, episodes)


def of_parts(change):
    return lambda episode: [change(part) for part in episode.agent_episodes.values()]


CHANGES = {
    "rewards": of_parts(lambda part: part.set_rewards(new_data=7.5, at_indices=0)),
    "a flag": lambda episode: setattr(episode, "is_terminated", not episode.is_terminated),
    "infos": of_parts(lambda part: part.infos.data[0].update(seen=True)),
    "custom data": lambda episode: episode.custom_data.update(seen=True),
    "another dict of custom data": lambda episode: setattr(episode, "_custom_data", {"seen": True}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_travel(theirs, episodes, change):
    for episode in (theirs[0], episodes[0]):
        change(episode)
    arrived, _ = travelled(episodes)
    check_equal(theirs, arrived)
    assert arrived[0].custom_data == theirs[0].custom_data
    assert arrived[0].is_terminated == theirs[0].is_terminated


def test_a_late_look_finds_the_recorded_data():
    """The store's memory is used again by later calls, but not while it may still be read."""
    late = sampled(MultiAgentEnvRunner, calls=6)
    for theirs, ours in zip(sampled(RLlibEnvRunner, calls=6), late, strict=True):
        check_equal(theirs, ours)


def test_memory_is_used_again_when_no_view_is_left():
    memory = ColumnMemory()
    rows = np.arange(4)
    leaf, final = np.arange(8, dtype=np.float32).reshape(4, 2), np.full((1, 2), 9, np.float32)

    def gather():
        [column] = memory.gather([leaf], [final], rows, np.array([1, 3]), np.array([0, -1]))
        return column

    first = gather()
    np.testing.assert_array_equal(first, [[0, 1], [9, 9], [2, 3], [4, 5], [6, 7]])
    address, view = first.ctypes.data, first[1:2]
    del first
    second = gather()
    assert second.ctypes.data != address  # a view lives
    del view
    assert gather().ctypes.data == address
    np.testing.assert_array_equal(second, gather())


def test_objects_get_memory_of_their_own():
    memory = ColumnMemory()
    leaf = np.array([{"a": 1}, {"b": 2}], object)
    [column] = memory.gather([leaf], [leaf[:0]], np.arange(2), np.array([2]), np.array([-1]))
    assert column.tolist() == [{"a": 1}, {"b": 2}]
