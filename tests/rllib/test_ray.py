"""With real Ray processes: remote runners, failures, checkpoints, Tune, evaluation, asynchronous algorithms."""

import os
import signal
import time

import numpy as np
import pytest
import tree
from ray import tune
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from fastmarl.rllib import MultiAgentEnvRunner

pytestmark = [
    pytest.mark.usefixtures("local_ray", "sent_by_value"),
    pytest.mark.xdist_group("ray"),  # one set of Ray's processes at a time
    pytest.mark.filterwarnings("ignore"),  # Ray's and Gymnasium's own
]


RESTART_TIMEOUT_S = 240  # on a busy machine a process of Ray's takes long to begin


def make_config(kind=PPOConfig, runner_class=MultiAgentEnvRunner, **env_runners):
    config = (
        kind()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .multi_agent(policies=["p0", "p1"], policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}")
        .env_runners(env_runner_cls=runner_class, **{"num_env_runners": 2, "num_envs_per_env_runner": 2, **env_runners})
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16]))
        .debugging(seed=3)
    )
    config.training(train_batch_size_per_learner=400, lr=3e-3)
    if kind is PPOConfig:
        config.training(minibatch_size=128, num_epochs=4)
    else:  # only here: how many updates fit into a second is not to decide what PPO learns
        config.reporting(min_time_s_per_iteration=1)
        config.learners(num_learners=0)  # by default it is a process of its own
    return config


@pytest.fixture
def build():
    """Builds algorithms and stops them."""
    built = []

    def build_algorithm(config):
        built.append(config.build_algo())
        return built[-1]

    yield build_algorithm
    for algorithm in built:
        algorithm.stop()


def learned(algorithm):
    return algorithm.learner_group.get_weights()


def assert_same_weights(one, other):
    tree.map_structure(np.testing.assert_array_equal, learned(one), learned(other))


class OneInTwoFallsBack(MultiAgentEnvRunner):
    """The second remote runner has a vector env of its own, so that RLlib's code samples there."""

    def make_env(self):
        super().make_env()
        if self.worker_index == 2:
            self.env.__class__ = type("OwnVectorEnv", (type(self.env),), {})


ONE_IN_TWO = {"num_accelerated_env_runners": 1, "num_slow_path_env_runners": {"vector_env": 1}}


@pytest.fixture(scope="module")
def trained(local_ray, sent_by_value):
    """RLlib's weights after three iterations with two remote runners, and an algorithm with ours after as many.

    Of these, one falls back: it reports that it does, and what it samples is RLlib's either way. Each reports four
    times for a result.
    """
    theirs = make_config(runner_class=RLlibEnvRunner, rollout_fragment_length=25).build_algo()
    try:
        for _ in range(3):
            theirs.train()
        weights = learned(theirs)
    finally:
        theirs.stop()
    config = make_config(runner_class=OneInTwoFallsBack.options(fixes={"46"}), rollout_fragment_length=25)
    config.fault_tolerance(restart_failed_env_runners=True, delay_between_env_runner_restarts_s=0.1)
    ours = config.build_algo()  # only now: both learners draw from this process's generators
    try:
        results = [ours.train()["env_runners"] for _ in range(3)]
        yield weights, ours, results
    finally:
        ours.stop()


def of_remote_runners(algorithm, function):
    return algorithm.env_runner_group.foreach_env_runner(function, local_env_runner=False)


def kinds_in(metrics):
    return {name: metrics[name] for name in ONE_IN_TWO}


def test_remote_runners_learn_the_same_as_rllibs(trained):
    weights, ours, _ = trained
    tree.map_structure(np.testing.assert_array_equal, learned(ours), weights)


def test_remote_runners_are_accelerated_and_have_their_options(trained):
    _, ours, _ = trained
    found = of_remote_runners(ours, lambda runner: (runner.is_accelerated, runner.fixes))
    assert found == [(True, {"46"}), (False, {"46"})]


def test_results_report_how_many_runners_are_accelerated(trained):
    """Now, not in all reports since the beginning."""
    _, _, results = trained
    assert [kinds_in(metrics) for metrics in results] == [ONE_IN_TWO] * 3


@pytest.mark.exhaustive
def test_a_killed_runner_comes_back(trained):
    _, algorithm, _ = trained
    group = algorithm.env_runner_group
    pids = of_remote_runners(algorithm, lambda runner: os.getpid())
    first = group.healthy_env_runner_ids()[0]  # it samples when the signal comes
    group.foreach_env_runner_async(lambda runner: runner.sample(num_timesteps=10**7), remote_worker_ids=[first])
    os.kill(pids[0], signal.SIGKILL)
    deadline = time.monotonic() + RESTART_TIMEOUT_S
    while (result := algorithm.train()) and group.num_healthy_remote_env_runners() < 2:
        assert time.monotonic() < deadline
        time.sleep(0.5)  # else training takes the cores that a start needs
    assert result["env_runners"]["num_env_steps_sampled"] > 0
    algorithm.train()
    assert of_remote_runners(algorithm, lambda runner: runner.is_accelerated) == [True, False]
    for state in of_remote_runners(algorithm, lambda runner: runner.get_state(components="rl_module")["rl_module"]):
        for module_id, weights in learned(algorithm).items():
            for name, values in state[module_id].items():
                np.testing.assert_array_equal(values, weights[name])


def test_restored_algorithm_goes_on_equally(build, tmp_path):
    first = build(make_config(num_env_runners=0))
    first.train()
    path = first.save(str(tmp_path)).checkpoint.path
    restored = []
    for runner_class in (MultiAgentEnvRunner, RLlibEnvRunner):
        algorithm = build(make_config(num_env_runners=0, runner_class=runner_class))
        algorithm.restore(path)
        assert_same_weights(first, algorithm)
        restored.append(algorithm)
        metrics = algorithm.train()["env_runners"]
        assert runner_class is RLlibEnvRunner or metrics["num_accelerated_env_runners"] == 1
    assert_same_weights(*restored)


@pytest.mark.exhaustive
def test_tuner(tmp_path):
    config = make_config(num_env_runners=0).training(lr=tune.uniform(1e-3, 1e-2))
    tuner = tune.Tuner(
        "PPO",
        param_space=config,
        run_config=tune.RunConfig(stop={"training_iteration": 2}, storage_path=str(tmp_path), verbose=0),
    )
    results = tuner.fit()
    assert len(results) == 1
    assert not results.errors
    assert all(result.metrics["env_runners"]["num_env_steps_sampled_lifetime"] >= 800 for result in results)


@pytest.mark.exhaustive
@pytest.mark.parametrize("in_parallel", [False, True])
def test_evaluation_runners(build, in_parallel):
    config = make_config(num_env_runners=0).evaluation(
        evaluation_num_env_runners=1,
        evaluation_interval=1,
        evaluation_duration=3,
        evaluation_duration_unit="episodes",
        evaluation_parallel_to_training=in_parallel,
    )
    result = build(config).train()
    assert result["evaluation"]["env_runners"]["num_episodes"] >= 3
    assert result["evaluation"]["env_runners"]["num_accelerated_env_runners"] == 1
    assert result["env_runners"]["num_accelerated_env_runners"] == 1


@pytest.mark.exhaustive
def test_a_new_algorithm_that_is_restored_reports_its_own_runners(build, tmp_path):
    config = make_config(runner_class=OneInTwoFallsBack, rollout_fragment_length=25)
    algorithm = build(config)
    algorithm.train()
    path = algorithm.save(str(tmp_path)).checkpoint.path
    algorithm.stop()  # its runners leave room for others
    restored = build(config.copy(copy_frozen=False))
    restored.restore(path)
    assert kinds_in(restored.train()["env_runners"]) == ONE_IN_TWO


@pytest.mark.parametrize("kind", [APPOConfig, pytest.param(IMPALAConfig, marks=pytest.mark.exhaustive)])
def test_asynchronous_algorithms(build, kind):
    """APPO's runners take their weights from the state server, IMPALA's are sent them."""
    config = make_config(kind, num_env_runners=1)
    config.env_runners(use_env_runner_state_server=kind is APPOConfig)
    algorithm = build(config)
    group, best = algorithm.env_runner_group, 0.0
    for _ in range(60):  # episodes come, and weights go, whenever there are some
        best = max(best, algorithm.train()["env_runners"].get("episode_return_mean", 0.0))
        [seq_no] = group.foreach_env_runner(lambda runner: runner._weights_seq_no, local_env_runner=False)
        if best > 15 and seq_no > 0:
            return
    pytest.fail(f"mean return {best}, weights no. {seq_no}")
