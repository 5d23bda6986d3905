"""Whole training runs: RLlib with its own runner and with ours learn bit-identical weights."""

import numpy as np
import pytest
import tree
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole, MultiAgentPendulum
from support.exhaustive import params

from fastmarl.rllib import MultiAgentEnvRunner

pytestmark = [
    pytest.mark.usefixtures("local_ray"),
    pytest.mark.xdist_group("ray"),  # one set of Ray's processes at a time
    pytest.mark.filterwarnings("ignore"),  # Ray's and Gymnasium's own
]


def two_policies(config, env, **env_runners):
    return (
        config.environment(env, env_config={"num_agents": 2})
        .multi_agent(policies=["p0", "p1"], policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, **env_runners)
        .debugging(seed=11)
    )


def ppo(**model):
    config = two_policies(PPOConfig(), MultiAgentCartPole)
    config.training(train_batch_size_per_learner=128, minibatch_size=64, num_epochs=2, lr=3e-3)
    return config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16], **model))


def ppo_with_filter():
    config = ppo()
    return config.env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter(multi_agent=True))


class CartPoles(MultiAgentCartPole):
    """Cart poles with seeded action spaces, from which the first actions in the replay buffer are drawn."""

    def __init__(self, config=None):
        super().__init__(config)
        for space in self.action_spaces.values():
            space.seed(5)


class Pendulums(MultiAgentPendulum):
    """Pendulums with seeded action spaces, for the same reason."""

    def __init__(self, config=None):
        super().__init__(config)
        for space in self.action_spaces.values():
            space.seed(5)


def off_policy(config, env):
    replay = {"type": "MultiAgentEpisodeReplayBuffer", "capacity": 2000}
    config = two_policies(config, env, rollout_fragment_length=4)
    config.training(
        replay_buffer_config=replay, train_batch_size_per_learner=32, num_steps_sampled_before_learning_starts=64
    )
    config.reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=64)
    return config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16]))


RUNS = {  # name -> (config, iterations, whether fastmarl's loop samples)
    "ppo": (ppo, 3, True),
    "ppo with memory": (lambda: ppo(use_lstm=True, lstm_cell_size=8, max_seq_len=8), 3, True),
    "ppo with MeanStdFilter": (ppo_with_filter, 3, True),
    "dqn": (lambda: off_policy(DQNConfig(), CartPoles), 4, True),
    "sac": (lambda: off_policy(SACConfig(), Pendulums), 3, True),
}


def train(config, iterations, runner_class):
    """(what was learned and reported in each iteration, final weights, the runner's `is_accelerated`)."""
    config.env_runners(env_runner_cls=runner_class)
    algorithm = config.build_algo()
    if hasattr(algorithm.config, "replay_buffer_config"):
        algorithm.local_replay_buffer.rng = np.random.default_rng(7)  # RLlib has no option for it
    try:
        reports = [summary_of(algorithm.train()) for _ in range(iterations)]
        weights = algorithm.learner_group.get_weights()
        return reports, weights, getattr(algorithm.env_runner, "is_accelerated", None)
    finally:
        algorithm.stop()


def summary_of(result):
    """Returns and losses of a training result."""
    runners, learners = result["env_runners"], result["learners"]
    losses = {
        (module, name): float(value)
        for module in ("p0", "p1")
        for name, value in learners.get(module, {}).items()
        if "loss" in name
    }
    keys = ("episode_return_mean", "episode_len_mean", "agent_episode_returns_mean", "num_env_steps_sampled_lifetime")
    return {key: runners.get(key) for key in keys}, losses


@pytest.mark.parametrize("name", params(RUNS, ("ppo with memory", "ppo with MeanStdFilter", "sac")))
def test_trains_the_same(name):
    make_config, iterations, is_accelerated = RUNS[name]
    want, weights, _ = train(make_config(), iterations, RLlibEnvRunner)
    got, our_weights, took_fast_way = train(make_config(), iterations, MultiAgentEnvRunner)
    assert took_fast_way == is_accelerated
    assert any(losses for _, losses in want)
    np.testing.assert_equal(got, want)
    tree.map_structure(np.testing.assert_array_equal, our_weights, weights)


def test_ppo_learns_from_draws_of_our_own():
    config = ppo().training(train_batch_size_per_learner=1000, minibatch_size=250, num_epochs=6, lr=3e-3)
    config.env_runners(env_runner_cls=MultiAgentEnvRunner.options(sampler="fast"))
    algorithm = config.build_algo()
    try:
        returns = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(10)]
        assert algorithm.env_runner.inference_backends == {"p0": "native", "p1": "native"}
    finally:
        algorithm.stop()
    assert max(returns[-3:]) > 2 * returns[0], returns  # both agents' balanced steps, about 45 before learning
