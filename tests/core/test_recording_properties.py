"""The runner against a plain oracle, over random worlds: whatever the agents do, the record is right."""

import random
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from support.compare import SideBySide, assert_same_chunk, fingerprint, join, outline
from support.random_cases import number_of_cases
from support.runner import ReferenceRunner
from support.worlds import Call, World, make_world, world_of

GROUPS, WORLDS_PER_GROUP = 20, 100
FEW = 5  # of them, unless more are asked for
CASES = number_of_cases(FEW, most=WORLDS_PER_GROUP)
SOME_WORLDS = range(100_000, 100_000 + number_of_cases(20, most=120))


def _worlds(condition) -> list[int]:
    return [seed for seed in SOME_WORLDS if condition(make_world(random.Random(seed)))]


def _check(world: World) -> None:
    both = SideBySide(world)
    for chunk, expected in both.run():
        assert_same_chunk(world, chunk, expected)
    both.assert_same_actions()
    both.assert_same_metrics()


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_chunks_actions_and_counters_equal_the_oracle(group):
    for seed in range(group * WORLDS_PER_GROUP, group * WORLDS_PER_GROUP + CASES):
        with world_of(seed) as world:
            _check(world)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(2))
def test_so_they_do_when_parts_of_the_envs_take_turns(group):
    for seed in range(group * WORLDS_PER_GROUP, group * WORLDS_PER_GROUP + CASES):
        with world_of(seed) as world:
            _check(replace(world, num_splits=2 + seed % 2))


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
@settings(max_examples=number_of_cases(15), suppress_health_check=list(HealthCheck))
def test_small_worlds_equal_the_oracle(rng):
    world = make_world(rng, small=True)
    note(repr(world))
    _check(world)


@pytest.mark.slow
def test_the_worlds_cover_all_situations():
    """Else the tests above could pass for want of trouble."""
    seen: Counter[str] = Counter()
    for seed in (group * WORLDS_PER_GROUP + i for group in range(GROUPS) for i in range(FEW)):
        world = make_world(random.Random(seed))
        oracle = ReferenceRunner(world)
        for call in world.calls:
            chunks = oracle.sample(call)
            parts = [(chunk, part) for chunk in chunks for part in chunk.agents.values()]
            seen["split"] += any(c.id_ == d.id_ and c.env_t == d.env_t_started for c, d in combinations(chunks, 2))
            seen["nobody's chunk"] += any(not chunk.agents for chunk in chunks)
            seen["lookback"] += any(part.lookback for _, part in parts)
            seen["waited over a cut"] += any(p.env_ts[p.lookback] < c.env_t_started for c, p in parts)
            seen["last one repeated"] += any(p.obs[-1] == p.obs[-2] for _, p in parts)
            seen["died alone"] += any((p.terminated or p.truncated) and not c.terminated for c, p in parts)
        seen["early reward"] += oracle.early > 0
        seen["lost reward"] += oracle.lost != 0
        seen["pending reward"] += oracle.pending != 0
        seen["no agent acts"] += any(not actions for actions in oracle.env_actions.values())
        seen["everybody acts"] += any(len(actions) > 3 for actions in oracle.env_actions.values())
    assert len(seen) == 11 and min(seen.values()) >= 5, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", _worlds(lambda world: world.keeps_everything and not world.respawn))
def test_joined_chunks_equal_the_undivided_episode(seed):
    with world_of(seed) as world:
        both = SideBySide(world)
        chunks = defaultdict(list)
        for chunk, expected in both.run():
            chunks[expected.id_].append(chunk)
        for episode in both.oracle.finished:
            whole = both.oracle.whole(episode)
            assert_same_chunk(world, join(chunks[whole.id_]), whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", _worlds(lambda world: world.keeps_everything))
def test_rewards_are_conserved(seed):
    with world_of(seed) as world:
        both = SideBySide(world)
        returned = sum(chunk.get_return() for chunk, _ in both.run())
        total = sum(sum(env.reward_sums.values()) for env in both.envs)
        assert returned + both.oracle.pending + both.oracle.lost == total


def _divides(world: World) -> bool:
    """Return true if the length of calls can't matter; late rewards may depend on the steps returned before."""
    return world.keeps_everything and world.count_steps_by == "env_steps" and world.late_rewards != "accumulate"


@pytest.mark.slow
@pytest.mark.parametrize("seed", _worlds(lambda world: _divides(world) and not world.respawn))
def test_the_length_of_the_calls_does_not_matter(seed):
    with world_of(seed) as world:
        fragments = SideBySide(world)
        chunks = defaultdict(list)
        for chunk, expected in fragments.run():
            chunks[expected.id_].append(chunk)
        at_once = SideBySide(world)
        for chunk, expected in at_once.sample(Call(num_timesteps=fragments.oracle.env_steps)):
            joined = join(chunks[expected.id_])
            assert outline(joined) == outline(chunk)
            no_lookback = dict.fromkeys(expected.agents, 0)
            assert fingerprint(joined, no_lookback) == fingerprint(chunk, no_lookback)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SOME_WORLDS[::4])
def test_a_returned_chunk_never_changes(seed):
    with world_of(seed) as world:
        both = SideBySide(replace(world, reuse_arrays=True))
        held = []
        for chunk, expected in both.run():
            lookbacks = {agent: part.lookback for agent, part in expected.agents.items()}
            held.append((chunk, lookbacks, fingerprint(chunk, lookbacks)))
        for chunk, lookbacks, before in held:
            assert fingerprint(chunk, lookbacks) == before
