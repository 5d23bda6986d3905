"""Algorithms on RLlib's old API stack learn the same with the drop-in as with RLlib's class."""

from abc import ABCMeta
from copy import deepcopy
from time import monotonic

import numpy as np
import pytest
import tree
from ray import tune
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.rllib.utils.replay_buffers import MultiAgentPrioritizedReplayBuffer

from fastmarl.rllib import RolloutWorker

pytestmark = [
    pytest.mark.usefixtures("local_ray"),
    pytest.mark.xdist_group("ray"),  # one set of Ray's processes at a time
    pytest.mark.filterwarnings("ignore"),  # Ray's and Gymnasium's own
]
CLOCKS = ("_ms", "time", "throughput", "timer", "memory", "util", "_per_sec", "_s")


BOTH = (RLlibWorker, RolloutWorker)


def with_two_policies(config, worker_class, **env_runners):
    config.api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.environment(MultiAgentCartPole, env_config={"num_agents": 2})
    config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}")
    config.env_runners(env_runner_cls=worker_class, **{"num_env_runners": 0, **env_runners})
    config.training(model={"fcnet_hiddens": [16]})
    return config.framework("torch").debugging(seed=3)


def ppo(worker_class, **env_runners):
    config = with_two_policies(PPOConfig(), worker_class, num_envs_per_env_runner=2, **env_runners)
    return config.training(train_batch_size=128, minibatch_size=64, num_epochs=2)


class _Named(ABCMeta):
    def __contains__(cls, text):
        return text in cls.__name__


class Buffer(MultiAgentPrioritizedReplayBuffer, metaclass=_Named):
    """RLlib 2.60 looks for a text in the class of the buffer."""


def dqn(worker_class):
    config = with_two_policies(DQNConfig(), worker_class, rollout_fragment_length=8)
    buffer = {"type": Buffer, "capacity": 5000, "prioritized_replay_alpha": 0.6, "prioritized_replay_beta": 0.4,
              "prioritized_replay_eps": 1e-6}  # fmt: skip
    config.training(train_batch_size=32, num_steps_sampled_before_learning_starts=100, replay_buffer_config=buffer)
    return config.reporting(min_sample_timesteps_per_iteration=200, min_time_s_per_iteration=0)


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


def without_clocks(results):
    return {
        path: value
        for path, value in tree.flatten_with_path(results)
        if not any(name in str(part) for part in path for name in CLOCKS)
    }


def assert_same_weights(one, other):
    tree.map_structure(np.testing.assert_array_equal, one.get_weights(), other.get_weights())


def test_ppo_learns_the_same(build):
    kept = ("env_runners", "info", "num_agent_steps_trained", "timesteps_total")
    algorithms, results = [], []
    for worker_class in BOTH:
        algorithms.append(build(ppo(worker_class)))  # seeds what both draw from
        trained = [algorithms[-1].train() for _ in range(3)]
        results.append([without_clocks({name: one[name] for name in kept if name in one}) for one in trained])
    assert algorithms[1].env_runner.is_accelerated
    assert_same_weights(*algorithms)
    for theirs, ours in zip(*results, strict=True):
        assert theirs.keys() == ours.keys()
        assert [path for path in theirs if repr(theirs[path]) != repr(ours[path])] == []


def test_dqn_learns_the_same(build):
    algorithms = []
    for worker_class in BOTH:
        algorithms.append(build(dqn(worker_class)))  # seeds what both draw from
        before = deepcopy(algorithms[-1].get_weights())
        for _ in range(2):
            algorithms[-1].train()
    assert algorithms[1].env_runner.is_accelerated
    assert_same_weights(*algorithms)
    weights = algorithms[1].get_weights()
    assert not all(map(np.array_equal, tree.flatten(before), tree.flatten(weights)))


def are_accelerated(group):
    """For each remote worker, whether it is."""
    return group.foreach_env_runner(lambda worker: worker.is_accelerated, local_env_runner=False)


@pytest.mark.exhaustive
def test_remote_workers_and_evaluation_workers(build):
    """One of each: with several, RLlib takes their batches in the order in which they come."""
    algorithms, evaluated = [], []
    for worker_class in BOTH:
        config = ppo(worker_class, num_env_runners=1)
        config.evaluation(evaluation_interval=1, evaluation_num_env_runners=1, evaluation_duration=4)
        algorithms.append(build(config))
        results = [algorithms[-1].train()["evaluation"]["env_runners"] for _ in range(3)]
        evaluated.append([one["hist_stats"] for one in results])
        if worker_class is RolloutWorker:
            for group in (algorithms[-1].env_runner_group, algorithms[-1].eval_env_runner_group):
                assert are_accelerated(group) == [True]
    assert_same_weights(*algorithms)
    assert evaluated[0] == evaluated[1]


def test_an_algorithm_goes_on_from_a_checkpoint(build, tmp_path):
    algorithms = []
    for worker_class in BOTH:
        config = ppo(worker_class).env_runners(observation_filter="MeanStdFilter")
        first = build(config)
        for _ in range(2):
            first.train()
        path = first.save(str(tmp_path / worker_class.__module__)).checkpoint.path
        algorithms.append(build(config))
        algorithms[-1].restore(path)
        assert_same_weights(first, algorithms[-1])
        algorithms[-1].train()
    assert algorithms[1].env_runner.is_accelerated
    assert_same_weights(*algorithms)


@pytest.mark.exhaustive
@pytest.mark.parametrize("config_class", [IMPALAConfig, APPOConfig])
def test_asynchronous_algorithms_train(build, config_class):
    """In which order RLlib learns from batches depends on time."""
    config = with_two_policies(config_class(), RolloutWorker, num_env_runners=2, rollout_fragment_length=50)
    config.resources(num_gpus=0).training(train_batch_size=200)
    algorithm = build(config.reporting(min_time_s_per_iteration=1))
    before = deepcopy(algorithm.get_weights())
    deadline = monotonic() + 120
    while algorithm.train()["num_agent_steps_trained"] == 0:
        assert monotonic() < deadline
    assert are_accelerated(algorithm.env_runner_group) == [True, True]
    weights = tree.flatten(algorithm.get_weights())
    assert all(np.isfinite(array).all() for array in weights)
    assert any(not np.array_equal(one, other) for one, other in zip(weights, tree.flatten(before), strict=True))


@pytest.mark.exhaustive
def test_tune_runs_trials(tmp_path):
    """Returns are the same in each iteration with either sampler."""
    returns = []
    for worker_class in BOTH:
        tuner = tune.Tuner(
            "PPO",
            param_space=ppo(worker_class).training(lr=tune.grid_search([1e-3, 1e-4])).to_dict(),
            run_config=tune.RunConfig(stop={"training_iteration": 2}, storage_path=str(tmp_path), verbose=0),
        )
        results = tuner.fit()
        assert not results.errors
        returns.append([result.metrics["env_runners"]["hist_stats"]["episode_reward"] for result in results])
    assert len(returns[0]) == 2 and returns[0] == returns[1]
