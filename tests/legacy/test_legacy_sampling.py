"""A legacy worker's batches and metrics against a plain oracle, over random worlds."""

import random
from collections import defaultdict
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from support.exhaustive import further
from support.random_cases import number_of_cases
from support.replay import encode_actions, leaves, make_config, recorded
from support.runner import ReferenceRunner
from support.worlds import Call, make_world, world_of

import fastmarl
from fastmarl.legacy import Policy, RolloutWorker, RolloutWorkerConfig, SampleBatch

N_BATCHES = 8


class Plain(Policy):
    """A policy without a `postprocess_trajectory()` of its own."""

    def learn_on_batch(self, samples):
        return {}


class Hooked(Plain):
    """The hook marks the steps with the number of agents around."""

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        assert isinstance(episode, fastmarl.MultiAgentEpisode)
        assert len(set(sample_batch["eps_id"])) == len(set(sample_batch["agent_index"])) == 1
        for policy_id, policy, others in other_agent_batches.values():
            assert isinstance(policy, Plain)
            assert policy.module.action_kind  # that of SerialPolicy
            assert isinstance(policy_id, str)
            assert set(others["eps_id"]) == set(sample_batch["eps_id"])
        sample_batch["around"] = np.full(len(sample_batch), len(other_agent_batches))
        return sample_batch


def make_worker(world, policy_class=Plain):
    config, _ = make_config(world)
    options = {option.name: getattr(config, option.name) for option in fields(config)}
    return RolloutWorker(config=RolloutWorkerConfig(**options), default_policy_class=policy_class)


def expected_rows(world, chunks):
    """((env, reset), agent) -> a row for each step."""
    rows = defaultdict(list)
    for chunk in chunks:
        for agent, part in chunk.agents.items():
            for i in range(part.lookback, len(part.rewards)):
                last = i == len(part.rewards) - 1
                rows[chunk.id_, agent].append((
                    world.module_of[agent], part.obs[i], part.obs[i + 1], part.actions[i], part.rewards[i],
                    last and part.terminated, last and part.truncated, part.env_ts[i + 1] - 1, part.infos[i],
                ))  # fmt: skip
    return rows


def rows_of(world, batch):
    """(eps_id, agent_index) -> rows as above; checks what rows don't show."""
    rows, unrolls = defaultdict(list), {}
    for policy_id, of_policy in batch.policy_batches.items():
        assert isinstance(of_policy, SampleBatch)
        n = len(of_policy)
        serial = of_policy["serial"].tolist()
        for got, want in zip(leaves(of_policy["obs"]), leaves(recorded(world, policy_id, serial)), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
        assert of_policy["rewards"].dtype == np.float32
        assert of_policy["infos"].dtype == object
        assert of_policy["actions"].dtype == encode_actions(world.action_kinds[policy_id], [0]).dtype
        new_obs = [[np.asarray(leaf[i]).tolist() for leaf in leaves(of_policy["new_obs"])] for i in range(n)]
        names = ("actions", "rewards", "terminateds", "truncateds", "t", "infos")
        plain = zip(*(of_policy[name].tolist() for name in names), strict=True)
        for i, (action, reward, terminated, truncated, t, info) in enumerate(plain):
            key = int(of_policy["eps_id"][i]), int(of_policy["agent_index"][i])
            rows[key].append((policy_id, serial[i], new_obs[i], action, reward, terminated, truncated, t, info))
            unrolls.setdefault(int(of_policy["unroll_id"][i]), set()).add((policy_id, key))
    assert all(len(keys) == 1 for keys in unrolls.values()), "an unroll of two agents"
    return rows


def with_new_obs(world, row):
    policy_id, serial, after, action, *others = row
    of_after = [np.asarray(leaf).tolist() for leaf in leaves(recorded(world, policy_id, after))]
    return (policy_id, serial, of_after, np.asarray(action).tolist(), *others)


class Names:
    """Which number stands for which episode, and which index for which agent, from batch to batch."""

    def __init__(self):
        self.episodes, self.agents = {}, {}

    def check(self, expected, got):
        by_first = {rows[0][1]: key for key, rows in got.items()}
        assert {rows[0][1] for rows in expected.values()} == by_first.keys()
        for (episode, agent), rows in expected.items():
            number, index = by_first[rows[0][1]]
            assert self.episodes.setdefault(episode, number) == number
            assert self.agents.setdefault((episode, agent), index) == index
            assert got[number, index] == rows
        assert len(set(self.episodes.values())) == len(self.episodes)
        of_episodes = [(episode, index) for (episode, _), index in self.agents.items()]
        assert len(set(of_episodes)) == len(of_episodes)

    def check_order(self, expected, got):
        """Episodes are in the order of their first chunks, module by module."""
        for module in {rows[0][0] for rows in got.values()}:
            wanted = [self.episodes[episode] for (episode, _), rows in expected.items() if rows[0][0] == module]
            numbers = [number for (number, _), rows in got.items() if rows[0][0] == module]
            assert [*dict.fromkeys(numbers)] == [*dict.fromkeys(wanted)]


def next_fragment(world, oracle):
    """Sample the next batch's chunks, of at least that many steps; an agent's step counts once it is observed again."""
    wanted, chunks = world.fragment * world.num_envs, []
    while (missing := wanted - steps_of(world, chunks)) > 0:
        chunks += oracle.sample(Call(num_timesteps=missing))
    return chunks


def steps_of(world, chunks):
    if world.count_steps_by == "env_steps":
        return sum(chunk.env_t - chunk.env_t_started for chunk in chunks)
    return sum(part.steps for chunk in chunks for part in chunk.agents.values())


def check_fragments(world, policy_class=Plain):
    world = replace(world, batch_mode="truncate_episodes")
    oracle, names = ReferenceRunner(world), Names()
    with make_worker(world, policy_class) as worker:
        for _ in range(N_BATCHES):
            n_finished = len(oracle.finished)
            chunks = next_fragment(world, oracle)
            batch = worker.sample()
            expected = expected_rows(world, chunks)
            expected = {key: [with_new_obs(world, row) for row in rows] for key, rows in expected.items()}
            got = rows_of(world, batch)
            names.check(expected, got)
            names.check_order(expected, got)
            assert batch.count == sum(chunk.env_t - chunk.env_t_started for chunk in chunks)
            assert batch.agent_steps() == sum(map(len, expected.values()))
            check_metrics(worker.get_metrics(), oracle.finished[n_finished:])


def check_metrics(metrics, finished):
    assert [of_one.episode_length for of_one in metrics] == [episode.env_t for episode in finished]
    for of_one, episode in zip(metrics, finished, strict=True):
        totals = defaultdict(float)
        for trajectory in episode.trajectories:
            if trajectory.rewards:
                totals[trajectory.agent, trajectory.module] += sum(trajectory.rewards)
        assert of_one.agent_rewards == totals
        assert of_one.episode_reward == sum(totals.values())
        assert not of_one.episode_faulty


def check_whole_episodes(world):
    world = replace(world, batch_mode="complete_episodes")
    oracle, names = ReferenceRunner(replace(world, lookback=0)), Names()
    oracle.sample(Call(num_timesteps=1000))
    whole = {(episode.env, episode.resets): oracle.whole(episode) for episode in oracle.finished}
    first_serials = {part.obs[0]: id_ for id_, chunk in whole.items() for part in chunk.agents.values()}
    seen = []
    with make_worker(world) as worker:
        for _ in range(N_BATCHES):
            batch = worker.sample()
            rows = rows_of(world, batch)
            ids = list(dict.fromkeys(first_serials[of_agent[0][1]] for of_agent in rows.values()))
            expected = expected_rows(world, [whole[id_] for id_ in ids])
            names.check({key: [with_new_obs(world, row) for row in of_one] for key, of_one in expected.items()}, rows)
            steps = sum(whole[id_].env_t for id_ in ids)
            assert batch.count >= steps
            wanted = world.fragment * world.num_envs
            assert (batch.count if world.count_steps_by == "env_steps" else batch.agent_steps()) >= wanted
            seen += ids
    assert len(set(seen)) == len(seen), "an episode in two batches"


@pytest.mark.slow
@pytest.mark.parametrize("group", [0, *further([1, 2, 3])])
def test_fragments_equal_the_oracle(group):
    for seed in range(group * 25, group * 25 + 25):
        with world_of(seed) as world:
            check_fragments(world, Hooked if seed % 2 else Plain)


def _is_unaffected_by_cuts(world):
    """Return true if an episode is the same in one call as in several: no agent respawns, or gets a late reward."""
    return not world.respawn and world.late_rewards != "accumulate"


WHOLE = [seed for seed in range(40) if _is_unaffected_by_cuts(make_world(random.Random(seed)))]


@pytest.mark.slow
@pytest.mark.parametrize("group", [0, *further([1, 2, 3])])
def test_complete_episodes_equal_the_oracle(group):
    for seed in WHOLE[group::4]:
        with world_of(seed) as world:
            check_whole_episodes(world)


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
@settings(max_examples=number_of_cases(15), suppress_health_check=list(HealthCheck))
def test_fragments_of_small_worlds_equal_the_oracle(rng):
    world = make_world(rng, small=True)
    note(repr(world))
    check_fragments(world, Hooked)


def test_single_steps_make_the_same_batches():
    world = replace(make_world(random.Random(7)), batch_mode="truncate_episodes", count_steps_by="env_steps")
    with make_worker(world) as one, make_worker(world) as other:
        for _ in range(4):
            while not (made := one.env_runner.step()):
                pass
            batch = other.sample()
            assert made[-1].count == batch.count
            for policy_id, columns in batch.policy_batches.items():
                ours = made[-1].policy_batches[policy_id]
                assert sorted(ours["serial"].tolist()) == sorted(columns["serial"].tolist())
