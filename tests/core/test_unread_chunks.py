"""Episodes are read at the first access to anything in them."""

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import pytest
from support.interrupts import Interruption, in_own_thread, lines_of
from support.short_episodes import Short, make_runner
from support.tapes.worlds import World

from fastmarl import MultiAgentEnvRunner, MultiAgentEpisode
from fastmarl.core.episodes import chunk as chunk_file
from fastmarl.core.episodes import readable
from fastmarl.core.native._locked import locked


def make_episodes():
    runner = make_runner(None, env_config={"n_agents": 2, "length": 3}, num_envs_per_env_runner=2)
    return runner.sample(num_timesteps=16)


def is_read(episode):
    return isinstance(episode._chunk, chunk_file.Chunk)


@pytest.mark.parametrize("is_on", [True, False])
def test_sampling_leaves_the_garbage_collector_on_or_off(is_on):
    if not is_on:
        gc.disable()
    try:
        make_episodes()
        assert gc.isenabled() == is_on
    finally:
        gc.enable()


def test_a_lock_is_free_after_a_call_that_raises():
    lock = Lock()
    with pytest.raises(ZeroDivisionError):
        locked(lock, divmod, 1, 0)
    assert not lock.locked()


@pytest.mark.parametrize("ask", [len, repr, lambda episode: episode.id_, lambda episode: episode[1:2], pickle.dumps])
def test_an_episode_is_read_when_it_is_first_used(ask):
    for episode in make_episodes():
        assert type(episode) is MultiAgentEpisode
        assert not is_read(episode)
        ask(episode)
        assert is_read(episode)


def test_heads_are_those_of_chunks_that_hold_no_more():
    n_heads = n_others = 0
    for seed in range(12):
        world = World(seed)
        with MultiAgentEnvRunner(world.config()) as runner:
            episodes = [episode for call in world.calls() for episode in runner.sample(**call)]
        for episode in episodes:
            was_read, head = is_read(episode), episode.head()
            assert is_read(episode) == was_read
            chunk = episode.chunk
            infos = chunk.lanes.infos if chunk.lanes else True
            more = (infos, chunk.common_infos, chunk.custom_data, chunk.hanging_rewards, chunk.respawned)
            holds_more = any(more) or chunk.env_states is not None
            assert (head is None) == (was_read or holds_more)
            if head is not None:
                assert head == tuple(getattr(chunk, name) for name in head._fields)
            n_heads += head is not None
            n_others += head is None and not was_read
    assert n_heads > 20 < n_others


def test_agent_episodes_are_built_when_first_used():
    for episode in make_episodes():
        n_rows = episode.n_unbuilt_rows()
        assert n_rows > 0 and not is_read(episode)
        assert episode.is_done in (True, False)
        assert (episode.chunk.agent_episodes, episode.n_unbuilt_rows()) == (None, n_rows)
        assert episode.agent_episodes is episode.chunk.agent_episodes
        assert episode.n_unbuilt_rows() == 0


def test_attributes_that_are_set_stay():
    episode = make_episodes()[0]
    episode.observation_space = {"agent_0": "mine"}
    assert (episode.observation_space, episode.env_t) == ({"agent_0": "mine"}, 3)
    other = make_episodes()[0]
    del other.observation_space
    assert not hasattr(other, "observation_space")


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda episode: pickle.loads(pickle.dumps(episode))])
def test_copies_of_untouched_episodes(twin_of):
    twins = [twin_of(episode) for episode in make_episodes()]
    assert [(twin.env_t_started, twin.env_t, twin.is_done) for twin in twins] == [(0, 3, True)] * 4 + [
        (0, 2, False)
    ] * 2
    for twin in twins:
        assert twin.agent_steps() == 2 * len(twin)
        twin.validate()


def test_chunks_of_many_calls_are_read_as_they_were():
    """Later calls write to other memory."""
    early, late = (make_runner(None, env_config={"length": 40}, seed=3) for _ in range(2))
    read = [early.sample(num_timesteps=7)[0].get_state() for _ in range(6)]
    unread = [late.sample(num_timesteps=7)[0] for _ in range(6)]
    for expected, chunk in zip(read, unread, strict=True):
        state = chunk.get_state()
        assert (state["env_t_started"], state["env_t"]) == (expected["env_t_started"], expected["env_t"])
        for part, other in zip(state["agent_episodes"], expected["agent_episodes"], strict=True):
            for name in ("rewards", "env_ts", "actions"):
                assert part[name].tolist() == other[name].tolist()


def test_ids_have_the_types_of_their_own_episode():
    """Equal ids of different types may take part in one episode after the other."""

    class Renaming(Short):
        n_episodes = 0

        def reset(self, *, seed=None, options=None):
            self.possible_agents = [[1], [True], [np.int64(1)]][self.n_episodes]
            self.n_episodes += 1
            return super().reset()

    runner = make_runner(None, env=Renaming, env_config={"ids": [1], "length": 2})
    episodes = runner.sample(num_episodes=3)
    assert [type(agent) for episode in episodes for agent in episode.agent_ids] == [int, bool, np.int64]


def test_threads_may_ask_the_same_episode_first():
    episodes = make_episodes()
    with ThreadPoolExecutor(8) as pool:
        for episode in episodes:
            answers = set(pool.map(lambda _, episode=episode: (episode.env_t, episode.id_, len(episode)), range(64)))
            assert answers == {(episode.env_t, episode.id_, len(episode))}


def test_an_episode_that_is_kept_holds_no_infos_of_others():
    class Fact:
        def __init__(self, number):
            self.number = number

    class Tells(Short):
        n_steps = 0

        def step(self, actions):
            *result, _ = super().step(actions)
            self.n_steps += 1
            return *result, {"agent_0": {"fact": Fact(self.n_steps)}}

    runner = make_runner(None, env=Tells, env_config={"length": 3})
    kept = runner.sample(num_timesteps=30)[4]
    runner.sample(num_timesteps=1)
    numbers = [thing.number for thing in gc.get_objects() if type(thing) is Fact]
    assert sorted(number for number in numbers if number <= 30) == [13, 14, 15]
    assert [info["fact"].number for info in kept.get_infos()["agent_0"][1:]] == [13, 14, 15]


@pytest.mark.slow
@in_own_thread
def test_two_interrupts_while_an_episode_is_read_keep_no_other_thread_from_reading():
    """The second comes while the first one unwinds."""
    runner = make_runner(None)
    lines = lines_of(lambda: runner.sample(num_timesteps=3)[-1].agent_episodes)
    for line in lines:
        if line.file in (chunk_file.__file__, readable.__file__):
            for again in range(4):
                episode = runner.sample(num_timesteps=3)[-1]
                Interruption(line._replace(nth=1), again).run(lambda: episode.agent_episodes)  # noqa: B023
                with ThreadPoolExecutor() as threads:
                    assert threads.submit(episode.agent_steps).result(timeout=30) > 0
