"""Every reset has a seed of its own, from which its episode can be made again."""

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same
from support.forked import exit_code_of
from support.interrupts import Interruption, lines_of
from support.levels import KINDS, Levels, assert_can_be_made_again, runner_of
from support.process_runners import contents, make_runner

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.registry import env_creator
from fastmarl.core.native._reset_seeds import Children
from fastmarl.core.vector import seeds as seeds_module
from fastmarl.core.vector.seeds import ResetSeeds, Streams
from fastmarl.envs.cart_pole import CartPole
from fastmarl.envs.simple_spread import SimpleSpread
from fastmarl.errors import ConfigError


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**100 + 7, 2**170 + 3])
def test_first_words_of_children_are_numpys(seed):
    for key in [(), (3,), (0, 2**31), (1, 2, 3, 4, 5)]:
        children = Children(np.random.SeedSequence(seed, spawn_key=key))
        for number in (0, 1, 2, 77, 2**20, 2**32 - 1):
            sequence = np.random.SeedSequence(seed, spawn_key=(*key, number))
            assert children.first_word(number) == sequence.generate_state(1)[0]


def test_seeds_of_several_resets_are_those_of_each():
    at_once, one_by_one = (ResetSeeds(Streams(3, 1), 5) for _ in range(2))
    for env_indices in ([0, 1, 2, 3, 4], [2], [], [1, 4]):
        assert at_once.take_all(env_indices) == [one_by_one.take(env_index) for env_index in env_indices]
        assert (at_once.numbers, at_once.last) == (one_by_one.numbers, one_by_one.last)
    assert ResetSeeds(Streams(None, 1), 5).take_all([0, 3]) is None


def test_no_two_resets_share_a_seed_and_each_depends_on_all_that_names_it():
    def seeds(**options):
        given = {"seed": 5, "worker_index": 1, "incarnation": 0, **options}
        taken = ResetSeeds(Streams(given["seed"], given["worker_index"], given["incarnation"]), 3)
        return [taken.take(env_index) for _ in range(200) for env_index in range(3)]

    assert seeds() == seeds()
    others = [seeds(), seeds(seed=6), seeds(worker_index=2), seeds(incarnation=1)]
    assert all(0 <= seed < 2**31 for of_runner in others for seed in of_runner)
    assert len({seed for of_runner in others for seed in of_runner}) == 4 * 600
    assert set(seeds(seed=None)) == {None}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_episode_can_be_made_again_from_its_seed_and_its_actions(kind):
    runner = runner_of(kind, batch_mode="complete_episodes")
    episodes = [*runner.sample(num_timesteps=40), *runner.sample(), *runner.sample(num_episodes=7)]
    runner.stop()
    whole = [episode for episode in episodes if episode.is_done]
    assert len(whole) > 10
    assert len({episode.reset_seed for episode in whole}) == len(whole)
    for episode in whole:
        assert_can_be_made_again(episode)
        assert episode[1:].reset_seed == episode.reset_seed
        assert fastmarl.MultiAgentEpisode.from_state(episode.get_state()).reset_seed == episode.reset_seed


@pytest.mark.slow
def test_the_kinds_give_the_same_episodes():
    def sampled(kind):
        runner = runner_of(kind, explore=False)
        chunks = [chunk for n in (5, 40, 90) for chunk in runner.sample(num_timesteps=n)]
        runner.stop()
        return sorted((chunk.reset_seed, chunk.env_t_started, chunk.env_t) for chunk in chunks)

    assert sampled("sync") == sampled("workers") == sampled("batch")
    assert sampled("in parts") == sampled("batches")


def test_unseeded_runs_seed_nothing():
    runner = runner_of("sync", seed=None)
    assert {episode.reset_seed for episode in runner.sample(num_timesteps=60)} == {None}
    assert {seed for env in runner.env.envs for seed in env.seeds} == {None}


def test_remade_envs_continue_with_new_seeds(tmp_path):
    class Failing(Levels):
        def step(self, actions):
            if self.t == 1 and not (tmp_path / "once").exists():
                (tmp_path / "once").touch()
                raise KeyError("lost")
            return super().step(actions)

    runner = runner_of("sync", env=Failing, restart_failed_sub_environments=True)
    seeds = {chunk.id_: chunk.reset_seed for n in (20, 60) for chunk in runner.sample(num_timesteps=n)}
    assert len(set(seeds.values())) == len(seeds)
    runner.make_env()
    later = {chunk.id_: chunk.reset_seed for chunk in runner.sample(num_timesteps=60)}
    assert not set(later.values()) & set(seeds.values())


def test_another_incarnation_draws_otherwise():
    def sampled(incarnation):
        runner = runner_of("sync", incarnation=incarnation)
        weights = runner.get_weights()["default_policy"]
        chunks = runner.sample(num_timesteps=60)
        return {chunk.reset_seed for chunk in chunks}, [contents(chunk) for chunk in chunks], weights

    (seeds, _, weights), (others, _, same_weights) = sampled(0), sampled(1)
    assert not seeds & others
    assert all((weights[name] == same_weights[name]).all() for name in weights)


class Shared(CartPole):
    """As if all its envs drew from one generator."""

    seeds_each_episode = False

    def reset(self, env_indices, out, *, seeds=None):
        self.given.append((env_indices.tolist(), seeds))
        super().reset(env_indices, out, seeds=seeds)


def test_batches_that_share_a_generator_are_seeded_once():
    made = []
    make = env_creator("fastmarl.cart_pole")

    def make_shared(config):
        env = make(config)
        env.__class__ = Shared
        env.given = []
        made.append(env)
        return env

    runner = make_runner(make_shared, num_envs=4, mode="sync")
    chunks = runner.sample(num_timesteps=400)
    runner.stop()
    (first, seeds), *others = made[0].given
    assert first == [0, 1, 2, 3]
    assert len(set(seeds)) == 4
    assert others
    assert {given for _, given in others} == {None}
    assert {chunk.reset_seed for chunk in chunks} == {None}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_envs_with_generators_of_their_own_are_seeded_at_every_reset(mode):
    def make(config):
        return gym.make_vec(
            "CartPole-v1",
            num_envs=config.num_envs,
            vectorization_mode=mode,
            vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.DISABLED},
        )

    runner = make_runner(make, num_envs=3, mode="sync")
    episodes = runner.sample(num_episodes=7)
    runner.stop()
    (agent,) = episodes[0].agent_ids
    env = gym.make("CartPole-v1")
    for episode in episodes:
        assert env.reset(seed=episode.reset_seed)[0].tolist() == episode.get_observations(0)[agent].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "workers", "batch"])
def test_a_resumed_run_goes_on_with_episodes_that_never_were(kind, tmp_path):
    runner = runner_of(kind)
    before = {chunk.reset_seed for chunk in runner.sample(num_timesteps=90)}
    runner.save_to_path(tmp_path / "state")
    goes_on = [chunk.reset_seed for chunk in runner.sample(num_timesteps=90, force_reset=True)]
    runner.stop()
    resumed = runner_of(kind)
    resumed.restore_from_path(tmp_path / "state")
    after = [chunk.reset_seed for chunk in resumed.sample(num_timesteps=90)]
    resumed.stop()
    assert not before & set(after)
    assert set(goes_on) == set(after)


def test_a_runner_with_fewer_envs_keeps_the_numbers_of_the_others():
    runner = runner_of("sync")
    runner.sample(num_timesteps=60)
    state = runner.get_state("num_resets")
    small = make_runner(Levels, num_envs=1, mode="sync")
    small.set_state(state)
    small.sample(num_timesteps=60)
    assert small.get_state("num_resets")["num_resets"][1:] == state["num_resets"][1:]
    runner.set_state(small.get_state("num_resets"))
    for wrong in (None, [1, -1, 0], ["x"], [2**32]):
        with pytest.raises(ConfigError, match="num_resets"):
            runner.set_state({"num_resets": wrong})


@pytest.mark.parametrize("env_class", [CartPole, SimpleSpread])
@pytest.mark.parametrize(
    ("seeds", "of_numpy"),
    [
        ([3, 4], np.array([3, 4])),
        ([3, 4], np.array([3, 4], np.uint8)),
        ([2**63, 2**64 - 1], np.array([2**63, 2**64 - 1], np.uint64)),
        ([-1, -(2**63)], np.array([-1, -(2**63)])),
    ],
)
def test_batches_take_seeds_of_numpy(env_class, seeds, of_numpy):
    env = env_class(2)
    started = []
    for given in (seeds, of_numpy, list(of_numpy)):
        out = env.new_arrays()
        env.reset(np.arange(2), out, seeds=given)
        started.append(next(iter(out.groups.values())).obs.tolist())
    assert started[0] == started[1] == started[2]
    assert started[0][0] != started[0][1]
    with pytest.raises(ConfigError, match=r"a seed must be an integer or None, got .*0\.5"):
        env.reset(np.arange(2), env.new_arrays(), seeds=[0.5, 1])


def test_gymnasium_gets_pythons_integers():
    env = as_multi_agent_env(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))
    started = []
    for seeds in ([7, 8], np.array([7, 8])):
        out = env.new_arrays()
        env.reset(np.arange(2), out, seeds=seeds)
        started.append(next(iter(out.groups.values())).obs.tolist())
    assert started[0] == started[1]


def test_modules_that_are_made_in_several_threads_have_equal_weights():
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", seed=1, model_config={"fcnet_hiddens": [300] * 9})
    with ThreadPoolExecutor(4) as threads:
        runners = [*threads.map(fastmarl.MultiAgentEnvRunner, 12 * [config, replace(config, seed=None)])]
    first, *others = (runner.get_weights()["default_policy"] for runner in runners[::2])
    for weights in others:
        assert_same(weights, first)


def test_a_process_that_is_forked_meanwhile_makes_modules_too():
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", seed=1)
    holds, ends = Event(), Event()

    def hold():
        Streams(1, 0).torch_seeded(lambda: holds.set() or ends.wait(60))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(hold)
        holds.wait(60)
        assert exit_code_of(make_in_time, config) == 0
        ends.set()


def test_an_interrupt_while_modules_are_made_leaves_no_lock():
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", seed=1, model_config={"fcnet_hiddens": [4]})
    make = partial(fastmarl.MultiAgentEnvRunner, config)
    lines = [line for line in lines_of(make) if line.file == seeds_module.__file__]
    with ThreadPoolExecutor(1) as thread:
        for line in lines:
            thread.submit(Interruption(line).run, make).result()
    assert len(lines) > 5
    assert seeds_module._SEEDING.acquire(timeout=30)
    seeds_module._SEEDING.release()


def make_in_time(config):
    signal.alarm(30)  # ends a process that waits
    fastmarl.MultiAgentEnvRunner(config)
