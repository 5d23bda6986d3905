"""Chunks that own their data, by `compact()` or because few of a call's are kept: the same data, without the rest."""

import copy
import gc
import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.compare import SideBySide, assert_same_chunk
from support.exhaustive import further
from support.random_cases import number_of_cases
from support.short_episodes import Short, make_runner
from support.worlds import make_world

import fastmarl
from fastmarl.core.episodes import kept_chunks, lane_source
from fastmarl.testing import CountingEnv

WORLDS = range(410_000, 410_000 + number_of_cases(6, most=20))


@pytest.mark.parametrize("seed", WORLDS)
def test_a_compacted_chunk_answers_as_before(seed):
    world = make_world(random.Random(seed))
    for got, want in SideBySide(world, record_env_state=True).run():
        waiting, states = got.get_waiting_infos(), got.env_states.tolist()
        got.compact()
        assert_same_chunk(world, got, want)
        assert (got.get_waiting_infos(), got.env_states.tolist()) == (waiting, states)
        for part in got.agent_episodes.values():
            part.validate()
            assert part.get_rewards().flags.writeable
            assert part.source.lane_rows() is None


@pytest.mark.parametrize("seed", WORLDS)
def test_chunks_that_the_runner_compacts_answer_as_before(seed, monkeypatch):
    """Here it does so with whatever is kept, read or not, one call later."""
    monkeypatch.setattr(kept_chunks, "PATIENCE", 0)
    monkeypatch.setattr(kept_chunks, "ENOUGH", 1e9)
    world = make_world(random.Random(seed))
    pairs = []
    for pair in SideBySide(world).run():
        pairs.append(pair)
        if len(pairs) % 3 == 0:
            pair[0].agent_steps()
    for got, want in pairs:
        assert_same_chunk(world, got, want)


def test_joined_and_sliced_chunks_own_their_data_too():
    runner = make_runner(None, env_config={"n_agents": 2, "length": 30})
    (first,), (second,) = runner.sample(num_timesteps=10), runner.sample(num_timesteps=10)
    runner.stop()
    piece = second[2:5]
    expected = copy.deepcopy((piece.get_observations(), first.get_actions(), second.get_actions()))
    first.concat_episode(second)
    for episode in (first, piece):
        episode.compact()
    del second
    gc.collect()
    assert all(lease() is None for call in runner._sampling._kept._calls for lease, _, _ in call._blocks)
    np.testing.assert_array_equal(piece.get_observations()["agent_1"], expected[0]["agent_1"])
    both = np.concatenate([expected[1]["agent_0"], expected[2]["agent_0"]])
    np.testing.assert_array_equal(first.get_actions()["agent_0"], both)
    first.validate()


# Memory.


def bytes_per_agent_step(keep, *, calls=60, first_call=0, num_timesteps, **options):
    """Return the memory per agent step of the results of `calls` calls that `keep(chunks)` keeps.

    Each agent step has 64 bytes of observation and about as much of the rest.
    """
    runner = make_runner(None, env=lambda config: CountingEnv(obs_size=16), **options)
    if first_call:
        runner.sample(num_timesteps=first_call)
    runner.sample(num_timesteps=num_timesteps)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [each for _ in range(calls) for each in keep(runner.sample(num_timesteps=num_timesteps))]
        runner.sample(num_timesteps=num_timesteps)
        gc.collect()
        total = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return total / sum(each.agent_steps() for each in kept)


def everything(chunks):
    return chunks


def one(chunks):
    return chunks[-1:]


def one_that_was_read(chunks):
    for chunk in chunks:
        assert chunk.get_rewards()
    return chunks[:1]


def one_agent(chunks):
    """Without its chunk, and looked at."""
    part = chunks[-1].agent_episodes["agent_0"]
    assert len(part.get_observations())
    return [part]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "options", "most"),
    [
        (everything, {"num_timesteps": 200}, 300),
        (everything, {"num_timesteps": 20, "first_call": 500}, 900),
        (everything, {"num_timesteps": 1}, 3000),
        *further([(one, {"num_timesteps": 160, "num_envs_per_env_runner": 16}, 800)]),
        (one_that_was_read, {"num_timesteps": 160, "num_envs_per_env_runner": 16}, 800),
        (one_agent, {"num_timesteps": 160, "num_envs_per_env_runner": 16}, 1300),
    ],
)
def test_kept_chunks_cost_a_small_multiple_of_their_data(keep, options, most):
    assert bytes_per_agent_step(keep, **options) < most


@pytest.mark.slow
@pytest.mark.parametrize("n_calls_held", [1, 2, 8])
def test_dropping_the_chunks_of_a_call_together_makes_no_copies(n_calls_held, monkeypatch):
    made = []
    monkeypatch.setattr(lane_source, "CopiedColumns", made.append)
    runner = make_runner(None, env_config={"n_agents": 2, "length": 7}, num_envs_per_env_runner=4)
    held = []
    for _ in range(30):
        chunks = runner.sample(num_timesteps=120)
        assert sum(chunk.agent_steps() for chunk in chunks) == 240
        held = [chunks] if len(held) == n_calls_held else [*held, chunks]
    assert not made
    assert len(runner._sampling._kept._calls) <= kept_chunks.PATIENCE + n_calls_held


def test_chunks_are_read_and_joined_by_other_threads_while_they_are_compacted(monkeypatch):
    monkeypatch.setattr(kept_chunks, "PATIENCE", 0)
    monkeypatch.setattr(kept_chunks, "ENOUGH", 1e9)
    runners = [make_runner(None, env_config={"n_agents": 3, "length": 40}, seed=5) for _ in range(2)]
    expected = [runners[0].sample(num_timesteps=8)[0] for _ in range(20)]
    expected = [
        {agent: part.get_observations().copy() for agent, part in chunk.agent_episodes.items()} for chunk in expected
    ]

    def learn(place_and_chunk):
        place, chunk = place_and_chunk
        for _ in range(50):
            for agent, part in chunk.agent_episodes.items():
                np.testing.assert_array_equal(part.get_observations(), expected[place][agent])
                part.custom_data["seen"] = True
            chunk.compact()
        return all(part.custom_data["seen"] for part in chunk.agent_episodes.values())

    with ThreadPoolExecutor(4) as pool:
        chunks = ((place, runners[1].sample(num_timesteps=8)[0]) for place in range(20))
        assert all(pool.map(learn, chunks, timeout=60))


def test_chunks_without_frozen_modules_can_be_compacted_by_a_callback():
    def make(compacts):
        return fastmarl.MultiAgentEnvRunner(
            fastmarl.EnvRunnerConfig(
                env=Short,
                env_config={"n_agents": 3},
                policies={"learns": None, "frozen": None},
                policy_mapping_fn=lambda agent_id, episode: "frozen" if agent_id == "agent_1" else "learns",
                policies_to_train=["learns"],
                return_only_policies_to_train=True,
                callbacks_on_episode_end=lambda episode, **kwargs: compacts and episode.compact(),
                seed=1,
            )
        )

    for got, want in zip(*(make(compacts).sample(num_timesteps=12) for compacts in (True, False)), strict=True):
        assert list(got.agent_episodes) == list(want.agent_episodes) == ["agent_0", "agent_2"]
        assert set(got.get_agents_that_stepped()) == set(want.get_agents_that_stepped())
        for agent, part in want.agent_episodes.items():
            np.testing.assert_array_equal(got.agent_episodes[agent].get_observations(), part.get_observations())
