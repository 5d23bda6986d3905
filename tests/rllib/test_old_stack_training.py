"""PPO on RLlib's old API stack learns the same with the drop-in as with RLlib's class."""

import numpy as np
import pytest
import tree
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

from fastmarl.rllib import RolloutWorker

pytestmark = [
    pytest.mark.usefixtures("local_ray"),
    pytest.mark.xdist_group("ray"),  # one set of Ray's processes at a time
    pytest.mark.filterwarnings("ignore"),  # Ray's and Gymnasium's own
]
CLOCKS = ("_ms", "time", "throughput", "timer", "memory", "util", "_per_sec", "_s")


def ppo(worker_class):
    config = PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.environment(MultiAgentCartPole, env_config={"num_agents": 2})
    config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}")
    config.env_runners(env_runner_cls=worker_class, num_env_runners=0, num_envs_per_env_runner=2)
    config.training(train_batch_size=128, minibatch_size=64, num_epochs=2, model={"fcnet_hiddens": [16]})
    return config.framework("torch").debugging(seed=3)


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


def test_ppo_learns_the_same_in_30_iterations(build):
    kept = ("env_runners", "info", "num_agent_steps_trained", "timesteps_total")
    algorithms, results = [], []
    for worker_class in (RLlibWorker, RolloutWorker):
        algorithms.append(build(ppo(worker_class)))  # seeds what both draw from
        trained = [algorithms[-1].train() for _ in range(30)]
        results.append([without_clocks({name: one[name] for name in kept if name in one}) for one in trained])
    assert algorithms[1].env_runner.is_accelerated
    assert_same_weights(*algorithms)
    for theirs, ours in zip(*results, strict=True):
        assert theirs.keys() == ours.keys()
        assert [path for path in theirs if repr(theirs[path]) != repr(ours[path])] == []
