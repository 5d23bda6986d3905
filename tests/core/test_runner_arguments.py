"""Arguments that RLlib's runner takes in its constructor, and what envs are then made from."""

import pickle
from dataclasses import replace

import pytest
from support.short_episodes import Short

import fastmarl
from fastmarl.core.envs.context import EnvContext
from fastmarl.errors import ConfigError

SEEDED = fastmarl.EnvRunnerConfig(env=Short, seed=1, num_envs_per_env_runner=2)


def seeds_of(runner):
    with runner:
        return [episode.reset_seed for episode in runner.sample(num_episodes=2)]


def test_a_runner_is_one_of_several():
    runner = fastmarl.MultiAgentEnvRunner(SEEDED, worker_index=2, num_workers=5, tune_trial_id="t", spaces={"p": ()})
    assert (runner.worker_index, runner.num_workers, runner.tune_trial_id) == (2, 5, "t")
    assert runner.spaces == {"p": ()}
    assert (runner.config.worker_index, runner.config.num_env_runners) == (2, 5)
    contexts = [env.config for env in runner.env.envs]
    assert [(each.worker_index, each.vector_index, each.num_workers) for each in contexts] == [(2, 0, 5), (2, 1, 5)]
    assert not any(each.remote or each.recreated_worker for each in contexts)
    expected = replace(SEEDED, worker_index=2, num_env_runners=5)
    assert seeds_of(runner) == seeds_of(fastmarl.MultiAgentEnvRunner(expected))


def test_a_recreated_runner_draws_from_other_streams():
    runner = fastmarl.MultiAgentEnvRunner(SEEDED, recreated_worker=True)
    assert runner.env.envs[0].config.recreated_worker
    assert seeds_of(runner) == seeds_of(fastmarl.MultiAgentEnvRunner(replace(SEEDED, incarnation=1)))


def test_a_runner_that_evaluates_draws_from_other_streams():
    training, evaluating = (fastmarl.MultiAgentEnvRunner(replace(SEEDED, in_evaluation=each)) for each in (False, True))
    weights = [runner.get_weights()["default_policy"] for runner in (training, evaluating)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert not set(seeds_of(training)) & set(seeds_of(evaluating))
    with pytest.raises(ConfigError, match="in_evaluation is True, got False"):
        fastmarl.MultiAgentEnvRunner(replace(SEEDED, in_evaluation=True)).config = SEEDED


def test_the_config_counts_where_nothing_is_given():
    config = replace(SEEDED, worker_index=3, num_env_runners=4)
    with fastmarl.MultiAgentEnvRunner(config, worker_index=None, num_workers=None) as runner:
        assert (runner.worker_index, runner.num_workers, runner.spaces, runner.tune_trial_id) == (3, 4, {}, None)
        assert runner.config is config
    with fastmarl.MultiAgentEnvRunner(config, worker_index=0, num_workers=0) as runner:
        assert (runner.worker_index, runner.num_workers, runner.config.num_env_runners) == (0, 0, 1)


def test_other_arguments_are_left_out():
    with fastmarl.MultiAgentEnvRunner(SEEDED, env_creator=Short, validate_env=None, log_dir="x") as runner:
        assert runner.config is SEEDED
    with pytest.warns(UserWarning, match=r"ignores the unknown arguments \['worker_idx'\]") as warned:
        fastmarl.MultiAgentEnvRunner(SEEDED, worker_idx=1).stop()
    assert warned[0].filename == __file__
    for arguments, problem in (
        ({"worker_index": -1}, "worker_index must be an integer >= 0, got -1"),
        ({"num_workers": "two"}, "num_workers must be an integer >= 0, got 'two'"),
    ):
        with pytest.raises(ConfigError, match=problem):
            fastmarl.MultiAgentEnvRunner(SEEDED, **arguments)
    with pytest.raises(ConfigError, match="expected an EnvRunnerConfig, got dict"):
        fastmarl.MultiAgentEnvRunner({}, worker_index=1)


def test_methods_for_remote_callers():
    with fastmarl.MultiAgentEnvRunner(SEEDED) as runner:
        assert runner.ping() == "pong"
        assert runner.apply(lambda runner, a, *, b: (runner.num_envs, a, b), 1, b=2) == (2, 1, 2)
        episodes, state, metrics = runner.sample_get_state_and_metrics()
        assert sum(map(len, episodes)) == metrics["num_env_steps_sampled"] == 400
        assert "rl_module" not in state
        assert "weights_seq_no" not in state
        assert state["num_env_steps_sampled_lifetime"] == 400


def test_contexts():
    context = EnvContext({"a": 1}, 2, 3, True, 4, True, num_envs=5)
    other = context.copy_with_overrides(vector_index=0, remote=False)
    names = ("worker_index", "vector_index", "remote", "num_workers", "recreated_worker", "num_envs")
    assert [getattr(other, name) for name in names] == [2, 0, False, 4, True, 5]
    assert (other, context.vector_index) == ({"a": 1}, 3)
    other["a"] = 2
    assert context["a"] == 1
    given = {"b": []}
    another = context.copy_with_overrides(given, 7, num_workers=8, recreated_worker=False)
    assert another == given
    assert another["b"] is not given["b"]
    assert [getattr(another, name) for name in names] == [7, 3, True, 8, False, 5]
    context.set_defaults({"a": 5, "c": 6})
    assert context == {"a": 1, "c": 6}
    copied = pickle.loads(pickle.dumps(context))
    assert vars(copied) == vars(context)
    assert str(context) == "{'a': 1, 'c': 6} of env 3 in runner 2 of 4, in a worker process"
    assert vars(EnvContext({}, 1)) == {
        "worker_index": 1, "vector_index": 0, "remote": False, "num_workers": None, "recreated_worker": False,
        "num_envs": 1,
    }  # fmt: skip


def test_an_automatic_length():
    config = replace(SEEDED, rollout_fragment_length="auto")
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        assert sum(map(len, runner.sample())) == 4000
        runner.config = replace(config, train_batch_size_per_learner=31, num_env_runners=1)
        assert sum(map(len, runner.sample())) == 32
    several = replace(config, train_batch_size_per_learner=31, num_env_runners=3)
    steps = []
    for index in (1, 2, 3):
        with fastmarl.MultiAgentEnvRunner(several, worker_index=index) as runner:
            steps.append(sum(map(len, runner.sample())))
    assert steps == [12, 10, 10]
    assert replace(several, train_batch_size_per_learner=1).get_rollout_fragment_length() == 1
    assert replace(SEEDED, rollout_fragment_length=9).get_rollout_fragment_length(5) == 9
    for options, problem in (
        ({"rollout_fragment_length": "all"}, "must be an integer >= 1 or \"auto\", got 'all'"),
        ({"train_batch_size_per_learner": 5}, 'has no effect without rollout_fragment_length="auto"'),
        ({"episodes_to_numpy": False}, "episodes_to_numpy must be True: columns of episodes are arrays .* got False"),
        ({"train_batch_size_per_learner": 0}, "must be an integer >= 1, got 0"),
    ):
        with pytest.raises(ConfigError, match=problem):
            replace(SEEDED, **options)
