"""Ray Data reads recorded files, and RLlib's behaviour cloning learns from those of one module."""

import numpy as np
import pytest
import ray
from ray.rllib.algorithms.bc import BCConfig

import fastmarl
from fastmarl.batches import columns
from fastmarl.offline import ParquetWriter

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
COLUMNS = ["eps_id", "agent_id", "module_id", "obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"]


@pytest.mark.exhaustive
def test_ray_data_and_behaviour_cloning(local_ray, tmp_path):
    config = fastmarl.EnvRunnerConfig(env="fastmarl.simple_spread", num_envs_per_env_runner=4, seed=1)
    with fastmarl.MultiAgentEnvRunner(config) as runner, ParquetWriter(tmp_path, next_obs=True) as writer:
        spaces = runner.get_spaces()["default_policy"]
        chunks = runner.sample(num_timesteps=600)
        writer.write(chunks)
    folder = str(tmp_path / "data" / "default_policy")

    batch, want = ray.data.read_parquet(folder).take_batch(2000), columns(chunks, next_obs=True)["default_policy"]
    assert len(batch["rewards"]) == 1800
    for name in ("obs", "new_obs", "actions", "rewards", "truncateds"):
        np.testing.assert_array_equal(np.stack(batch[name]), want[name])

    algorithm = (
        BCConfig()
        .environment(observation_space=spaces[0], action_space=spaces[1])
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .offline_data(
            input_=[folder],
            input_read_method="read_parquet",
            input_read_method_kwargs={"columns": COLUMNS},
            map_batches_kwargs={"concurrency": 1},
            dataset_num_iters_per_learner=1,
        )
        .training(train_batch_size_per_learner=256, lr=1e-3)
        .build_algo()
    )
    try:
        losses = [algorithm.train()["learners"]["default_policy"]["policy_loss"] for _ in range(2)]
    finally:
        algorithm.stop()
    assert np.isfinite(losses).all() and 1 < losses[0] < 2  # of a net that knows nothing yet: log(5)
