"""`fastmarl.legacy` where RLlib is not installed: batches of its own class, and nothing of Ray is imported."""

import subprocess
import sys

import pytest

SCRIPT = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED = sys.argv[1].split(",")
sys.meta_path.insert(0, Blocked())
import numpy as np
from fastmarl.legacy import JsonReader, RolloutWorker, RolloutWorkerConfig, SampleBatch, concat_samples

def learn(**options):
    config = RolloutWorkerConfig(
        env="fastmarl.cart_pole", env_config={"num_agents": 2}, policies=["p0", "p1"], num_envs_per_env_runner=2,
        policy_mapping_fn=lambda agent_id, episode: f"p{agent_id}", rollout_fragment_length=50, output=sys.argv[2],
        **options,
    )
    with RolloutWorker(config=config) as worker:
        batch = worker.sample()
        assert isinstance(batch["p0"], SampleBatch) and batch.count == 100
        worker.learn_on_batch(concat_samples([batch, worker.sample()]))
        for size in (0, 30):
            info, count = worker.sample_and_learn(100, 2, size, ["advantages"])
            assert count == 100 and np.isfinite(info["p1"]["learner_stats"]["total_loss"])
        return batch

learn()
learn(model_config={"use_lstm": True, "lstm_cell_size": 8}, max_seq_len=7)
learn(batch_mode="truncate_episodes", observation_filter="MeanStdFilter")
assert sum(batch.count for batch in JsonReader(sys.argv[2]).read_all_files()) == 3 * 4 * 100
assert not [name for name in sys.modules if name.split(".")[0] in BLOCKED]
print("ok")
"""


def run(tmp_path, *blocked):
    command = [sys.executable, "-c", SCRIPT, ",".join(blocked), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("ok\n"), done.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_worker_without_ray(tmp_path):
    run(tmp_path, "ray")


@pytest.mark.slow
def test_a_worker_without_ray_and_lz4(tmp_path):
    run(tmp_path, "ray", "lz4")
