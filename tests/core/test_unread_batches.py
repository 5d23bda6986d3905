"""Batches of untouched chunks equal those of chunks whose agent episodes were built.

`test_batches.py` compares the latter with plain loops.
"""

import itertools
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.batches import assert_same_bits
from support.compare import SideBySide
from support.exhaustive import further
from support.scenario_envs import CLOCK, MIXED_CLOCKS, RESPAWN, TURNS, Echo, runner_of
from support.scripted import scripted
from support.worlds import make_world

import fastmarl
from fastmarl.batches import aligned, columns, sequences
from fastmarl.core.episodes.chunk import Chunk

WORLDS = range(310_000, 310_040)
SPREAD = "fastmarl.simple_spread"
Make = Callable[[list], dict]
MAKES: list[Make] = [
    lambda chunks: columns(chunks, next_obs=True),
    lambda chunks: sequences(chunks, max_seq_len=3, burn_in=2),
    aligned,
    lambda chunks: aligned(chunks, groups=lambda agent_id, chunk: str(agent_id)[-1], agents=list(AGENTS)),
]
AGENTS = [*range(20), *(f"a{i}" for i in range(20)), *(f"agent_{i}" for i in range(20))]


def untouched(seed: int, **options: Any) -> list:
    """Return all chunks of a random world, without reading any; agents join, wait, die and respawn."""
    world = make_world(random.Random(seed))
    runner = SideBySide(world, **options).runner
    return [chunk for call in world.calls for chunk in runner.sample(**call.kwargs)]


def is_read(chunk: Any) -> bool:
    return type(chunk._chunk) is Chunk


def is_built(chunk: Any) -> bool:
    return is_read(chunk) and chunk.chunk.agent_episodes is not None


def assert_same_once_built(chunks: list, makes: list[Make] = MAKES) -> None:
    """Check that the batches of these chunks don't change when all agent episodes are built."""
    got = [make(chunks) for make in makes]
    for chunk in chunks:
        assert chunk.agent_episodes is not None
    for make, batches in zip(makes, got, strict=True):
        assert_same_bits(batches, make(chunks))


@pytest.mark.parametrize("seed", [*WORLDS[:15], *further(WORLDS[15:])])
def test_batches_of_untouched_chunks(seed):
    chunks = untouched(seed, record_env_state=True)
    were_built = [*map(is_built, chunks)]  # the runner compacts some that are held for long
    assert not all(were_built)
    for make in MAKES[:3]:
        make(chunks)
    assert [*map(is_built, chunks)] == were_built
    assert_same_once_built(chunks, MAKES[:3])


def test_batches_read_no_chunks():
    config = fastmarl.EnvRunnerConfig(env=SPREAD, num_envs_per_env_runner=5, record_env_state=True)
    chunks = fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=200)
    for make in MAKES[:3]:
        assert len(make(chunks)["default_policy"]["seq_lens"]) >= 10
    assert not any(map(is_read, chunks))
    assert_same_once_built(chunks, MAKES[:3])


def looked_at(chunk: Any) -> Any:
    assert chunk.env_t >= chunk.env_t_started
    return chunk


def built(chunk: Any) -> Any:
    assert chunk.agent_episodes is not None
    return chunk


def compacted(chunk: Any) -> Any:
    chunk.compact()
    return chunk


def restored(chunk: Any) -> Any:
    return pickle.loads(pickle.dumps(built(chunk)))


STATES = [lambda chunk: chunk, looked_at, built, compacted, restored, lambda chunk: chunk[:], lambda chunk: chunk[1:]]


ENVS = {
    "clock": scripted(CLOCK),
    "mixed clocks": scripted(MIXED_CLOCKS),
    "turns": scripted(TURNS),
    "respawn": scripted(RESPAWN),
    SPREAD: SPREAD,
    "gridworld": "fastmarl.gridworld",
}


@pytest.mark.parametrize("seed", [*range(5), *further(range(5, 12))])
@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
def test_chunks_of_any_order_and_kind(env, seed):
    """Mix chunks of two runners and several calls: backwards, some twice, in runs of one kind and alone."""
    rng = random.Random(seed)
    policies = (
        {} if isinstance(env, str) else {"policies": {"p": Echo(), "q": Echo()}, "policy_mapping_fn": alternating()}
    )
    config = fastmarl.EnvRunnerConfig(
        env=env, num_envs_per_env_runner=3, respawn=True, episode_lookback_horizon=rng.choice([0, 2]),
        record_env_state=env == SPREAD, **policies,
    )  # fmt: skip
    runners = [fastmarl.MultiAgentEnvRunner(config) for _ in range(2)]
    chunks = [chunk for n in (9, 30, 7) for runner in runners for chunk in runner.sample(num_timesteps=n)]
    order = rng.choice([lambda: None, chunks.reverse, lambda: rng.shuffle(chunks)])
    order()
    chunks += rng.sample(chunks, 2)
    kinds = rng.choices(STATES, k=3)
    given = [kinds[0](chunk) for chunk in chunks[:4]] + [rng.choice(kinds)(chunk) for chunk in chunks[4:]]
    assert_same_once_built([chunk for chunk in given if len(chunk)])


def alternating() -> Callable[[Any, Any], str]:
    """Return a mapping function that alternates between two modules, whatever the agent."""
    numbers = itertools.count()
    return lambda agent_id, episode: "pq"[next(numbers) % 2]


def test_an_array_envs_blocks_are_read_at_any_place():
    """The rows are evenly spaced, except where an episode ends within a call."""
    config = fastmarl.EnvRunnerConfig(env=SPREAD, num_envs_per_env_runner=4, seed=3)
    runner = fastmarl.MultiAgentEnvRunner(config)
    for n in (4, 4 * 7, 4 * 25, 4 * 60):
        chunks = runner.sample(num_timesteps=n)
        for some in (chunks, chunks[::-1], chunks[::2], chunks[1:2], [chunks[-1], chunks[0]]):
            got = columns(some, next_obs=True)["default_policy"]
            parts = [part for chunk in some for part in chunk.agent_episodes.values()]
            for name, asked in (
                ("obs", [part.get_observations(slice(None, -1)) for part in parts]),
                ("new_obs", [part.get_observations(slice(1, None)) for part in parts]),
                ("rewards", [part.get_rewards() for part in parts]),
                ("vf_preds", [part.get_extra_model_outputs("vf_preds") for part in parts]),
            ):
                np.testing.assert_array_equal(got[name], np.concatenate(asked), name)
            assert got["eps_id"].tolist() == [part.id_ for part in parts]


def test_chunks_of_the_policies_to_train():
    """Each holds the blocks of its own modules only."""
    runner = runner_of(
        MIXED_CLOCKS, num_envs_per_env_runner=3, policies={"p": Echo(), "q": Echo(), "r": Echo()},
        policy_mapping_fn=lambda agent_id, episode: {"a1": "q", "a2": "r"}.get(agent_id, "p"),
        policies_to_train=["q", "p"], return_only_policies_to_train=True,
    )  # fmt: skip
    chunks = runner.sample(num_timesteps=60)
    batches = columns(chunks)
    assert set(batches) == {"p", "q"} and not any(map(is_built, chunks))
    assert_same_once_built(chunks)


def test_chunks_that_were_sealed_one_by_one_lie_in_one_block():
    """Where `on_episode_end` is given chunks, those of a call are noted apart."""
    ended = []
    note = lambda *, episode, **_: ended.append(episode.is_done)  # noqa: E731
    chunks = runner_of(num_envs_per_env_runner=3, callbacks_on_episode_end=note).sample(num_timesteps=90)
    assert len(ended) > 3 and any(map(is_read, chunks)) and not any(map(is_built, chunks))
    assert_same_once_built(chunks)


@pytest.mark.parametrize("look", [lambda chunk: chunk, built, restored])
def test_an_agent_may_have_several_slots_and_a_slot_no_agent(look):
    chunks = [look(chunk) for chunk in runner_of().sample(num_episodes=2)]
    groups = {"twice": ["a1", "nobody", "a1", "a0"], "empty": [], "others": ["nobody"]}
    (twice,), (modules,) = aligned(chunks, groups=groups).values(), aligned(chunks, agents=["a1", "a0"]).values()
    assert twice["agent_id"].tolist() == [groups["twice"]] * len(chunks)
    for name in ("active", "obs", "actions", "rewards", "terminateds", "truncateds"):
        np.testing.assert_array_equal(twice[name][:, :, [0, 2, 3]], modules[name][:, :, [0, 0, 1]])
        assert not twice[name][:, :, 1].any()


def test_agents_without_a_step_have_a_slot_and_no_row():
    (chunk,) = runner_of().sample(num_timesteps=2)
    parts = chunk.agent_episodes
    chunk.agent_episodes = {"a1": parts["a1"].rows(0, 0, 0), "a0": parts["a0"]}
    assert columns([chunk])["p"]["agent_id"].tolist() == ["a0"]
    batch = aligned([chunk])["p"]
    assert batch["agent_id"].tolist() == [["a1", "a0"]]
    assert batch["active"].tolist() == [[[False, True]]] * 2


def test_modules_are_asked_for_only_where_they_matter():
    """Use a restored chunk that does not know its modules."""
    (chunk,) = runner_of().sample(num_timesteps=2)
    for part in chunk.agent_episodes.values():
        part.module_id = None
    chunk = pickle.loads(pickle.dumps(chunk))
    asked = []

    def mapping(agent_id, episode):
        asked.append(agent_id)
        return "m"

    chunk.agent_to_module_mapping_fn = mapping
    assert aligned([chunk], groups={"g": ["a1"]})["g"]["active"].all()
    assert asked == ["a1"]
    assert list(columns([chunk])) == ["m"] and asked == ["a1", "a0"]
