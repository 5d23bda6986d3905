"""Things of RLlib that fastmarl reads or computes alike: Tune's registry, automatic lengths, contexts."""

import inspect
from dataclasses import replace

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.env_context import EnvContext as RLlibsContext
from ray.tune.registry import register_env
from support.rllib_walk import Walk

import fastmarl
from fastmarl.core.envs.context import EnvContext
from fastmarl.core.envs.registry import may_be_named_by_a_file

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own


def test_envs_that_tune_knows():
    def create(context):
        env = Walk(context)
        env.context = context
        return env

    register_env("walk_of_tune", create)
    config = fastmarl.EnvRunnerConfig(env="walk_of_tune", env_config={"length": 3}, num_envs_per_env_runner=2)
    with fastmarl.MultiAgentEnvRunner(config, worker_index=4) as runner:
        assert [len(episode) for episode in runner.sample(num_episodes=2)] == [3, 3]
        contexts = [env.env.context if hasattr(env, "env") else env.context for env in runner.env.envs]
        assert [(dict(each), each.worker_index, each.vector_index) for each in contexts] == [
            ({"length": 3}, 4, 0),
            ({"length": 3}, 4, 1),
        ]
        assert may_be_named_by_a_file("walk_of_tune")
        runner.config = replace(
            runner.config, gym_env_vectorize_mode="async", num_env_workers=1, env_worker_start_method="fork"
        )
        runner.make_env()
        assert [len(episode) for episode in runner.sample(num_episodes=2)] == [3, 3]
    fastmarl.register_env("walk_of_tune", lambda context: Walk({"length": 2}))  # comes before Tune's
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        assert len(runner.sample(num_episodes=1)[0]) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@pytest.mark.xdist_group("ray")
def test_forked_workers_do_not_ask_ray_for_an_env():
    """They have none of its threads: they would wait for its answer for ever."""
    options = {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork", "num_envs_per_env_runner": 2}
    config = fastmarl.EnvRunnerConfig(env="support.levels:Levels", **options)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        assert runner.sample(num_timesteps=10)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("num_envs", [1, 3, 20])
@pytest.mark.parametrize("num_runners", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 32, 500, 512, 2500, 4000])
@pytest.mark.parametrize("num_learners", [0, 1, 3])
def test_automatic_lengths_are_those_of_rllib(num_envs, num_runners, batch_size, num_learners):
    theirs = PPOConfig().environment(Walk).training(train_batch_size_per_learner=batch_size)
    theirs = theirs.learners(num_learners=num_learners)
    theirs = theirs.env_runners(
        num_env_runners=num_runners, num_envs_per_env_runner=num_envs, rollout_fragment_length="auto"
    )
    ours = fastmarl.EnvRunnerConfig(
        env=Walk,
        rollout_fragment_length="auto",
        train_batch_size_per_learner=batch_size,
        num_learners=num_learners,
        num_env_runners=num_runners,
        num_envs_per_env_runner=num_envs,
    )
    for index in range(num_runners + 1):
        assert ours.get_rollout_fragment_length(index) == theirs.get_rollout_fragment_length(index)


def test_contexts_are_as_rllib_s():
    theirs, ours = RLlibsContext({"a": 1}, 2, 3, True, 4, True), EnvContext({"a": 1}, 2, 3, True, 4, True)
    for name in ("__init__", "copy_with_overrides", "set_defaults"):
        of_theirs, of_ours = (inspect.signature(getattr(cls, name)).parameters for cls in (RLlibsContext, EnvContext))
        assert [(each.name, each.default) for each in of_theirs.values()] == [
            (each.name, each.default) for each in of_ours.values() if each.name != "num_envs"
        ]
    for overrides in ({}, {"env_config": {"b": 2}}, {"worker_index": 0, "remote": False}, {"recreated_worker": False}):
        one, other = theirs.copy_with_overrides(**overrides), ours.copy_with_overrides(**overrides)
        assert dict(one) == dict(other)
        assert vars(one) == {name: value for name, value in vars(other).items() if name != "num_envs"}
