"""Files and batches go from RLlib to `fastmarl.legacy` and back."""

import json

import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.rllib.offline.io_context import IOContext as RLlibIOContext
from ray.rllib.offline.json_reader import JsonReader as RLlibReader
from ray.rllib.offline.json_writer import JsonWriter as RLlibWriter
from ray.rllib.policy import sample_batch as of_rllib
from support.exhaustive import further
from support.legacy import config_with

from fastmarl.errors import BatchError
from fastmarl.legacy import (
    JsonReader,
    JsonWriter,
    MultiAgentBatch,
    RolloutWorker,
    SampleBatch,
    concat_samples,
    json_to_parquet,
)
from fastmarl.offline import ParquetReader

pytestmark = [
    pytest.mark.usefixtures("rllib_closes_its_files"),
    pytest.mark.filterwarnings("ignore"),  # RLlib's and Gymnasium's own
]
POLICIES = ("default_policy", "p1")  # RLlib's reader wants a policy of that name


def our_worker(**options):
    mapping_fn = lambda agent_id, episode: POLICIES[agent_id]  # noqa: E731
    config = config_with(policies=POLICIES, policy_mapping_fn=mapping_fn, **{"rollout_fragment_length": 15, **options})
    return RolloutWorker(config=config)


def rllib_worker(**options):
    config = PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config.environment(MultiAgentCartPole, env_config={"num_agents": 2})
    config.multi_agent(policies=set(POLICIES), policy_mapping_fn=lambda agent_id, *args, **kwargs: POLICIES[agent_id])
    config.env_runners(num_env_runners=0, rollout_fragment_length=30).framework("torch").debugging(seed=1)
    config.training(model={"fcnet_hiddens": [8]}, train_batch_size=30).offline_data(**options)
    return RLlibWorker(
        env_creator=MultiAgentCartPole, default_policy_class=config.algo_class.get_default_policy_class(config),
        config=config,
    )  # fmt: skip


def assert_same(one, other):
    assert one.count == other.count
    assert list(one.policy_batches) == list(other.policy_batches)
    for policy_id, columns in one.policy_batches.items():
        assert set(columns) == set(other.policy_batches[policy_id])
        for name, column in columns.items():
            read = np.asarray(other.policy_batches[policy_id][name])
            if name == "infos":  # whose keys are texts in JSON
                assert json.loads(json.dumps(list(read))) == json.loads(json.dumps(list(column)))
                continue
            np.testing.assert_array_equal(read.astype(np.asarray(column).dtype), column)


def test_batches_become_rllibs():
    """With the same arrays and marks."""
    sequences = SampleBatch({"obs": np.arange(5.0), "seq_lens": [2, 3], "state_in_0": np.ones((2, 4))}, _max_seq_len=3)
    sequences.num_grad_updates = 7
    for batch in (sequences, sequences.copy().right_zero_pad(3)):
        theirs = batch.to_rllib()
        assert type(theirs) is of_rllib.SampleBatch and theirs.count == batch.count
        assert all(theirs[name] is column for name, column in batch.items()) and list(theirs) == list(batch)
        for mark in ("time_major", "max_seq_len", "zero_padded", "is_training", "num_grad_updates"):
            assert getattr(theirs, mark) == getattr(batch, mark), mark
    both = MultiAgentBatch({"p": sequences, "q": sequences}, 5).to_rllib()
    assert type(both) is of_rllib.MultiAgentBatch and both.env_steps() == 5
    assert {type(of_one) for of_one in both.policy_batches.values()} == {of_rllib.SampleBatch}


def test_batches_of_rllibs_classes_are_refused_where_they_would_be_mixed_with_ours():
    theirs = of_rllib.SampleBatch({"obs": np.arange(3.0)})
    for refused in (lambda: MultiAgentBatch({"p": theirs}, 3), lambda: concat_samples([theirs, theirs])):
        with pytest.raises(
            BatchError, match=r"got ray\.rllib\.policy\.sample_batch\.SampleBatch.*SampleBatch\(batch\)"
        ):
            refused()
    assert concat_samples([SampleBatch(theirs), SampleBatch(theirs)]).count == 6


@pytest.mark.parametrize("columns", [["obs", "new_obs"], *further([[], ["obs", "actions", "rewards", "advantages"]])])
def test_files_by_rllib_are_read_and_learned_from(tmp_path, columns):
    theirs = rllib_worker(output=str(tmp_path), output_compress_columns=columns)
    written = [theirs.sample() for _ in range(3)]
    assert list(map(type, written)) == [of_rllib.MultiAgentBatch] * 3
    for one, other in zip(written, JsonReader(tmp_path).read_all_files(), strict=True):
        assert_same(one, other)
    with our_worker(input_=str(tmp_path)) as ours:
        for one in written:
            assert np.isfinite(ours.learn_on_batch(one)["p1"]["learner_stats"]["total_loss"])
            batch = ours.sample()
            assert_same(one, batch)
            info = ours.learn_on_batch(batch)
            assert np.isfinite(info["p1"]["learner_stats"]["total_loss"])


@pytest.mark.parametrize("columns", [["obs", "actions", "rewards", "advantages"], None, *further([[]])])
def test_our_files_are_read_by_rllib(tmp_path, columns):
    with our_worker(output=str(tmp_path), output_compress_columns=columns) as ours:
        written = [ours.sample() for _ in range(3)]
    for one, other in zip(written, RLlibReader(str(tmp_path)).read_all_files(), strict=True):
        assert_same(one, other)
    theirs = rllib_worker(input_=str(tmp_path))
    for one in written:
        batch = theirs.sample()
        assert_same(one, batch)
        theirs.learn_on_batch(batch)
        theirs.learn_on_batch(one.to_rllib())


@pytest.mark.parametrize("packed", [["obs"], *further([[]])])
def test_files_by_rllib_are_converted_to_parquet(packed, tmp_path):
    theirs = rllib_worker(output=str(tmp_path / "json"), output_compress_columns=packed)
    written = of_rllib.concat_samples([theirs.sample() for _ in range(3)])
    n_steps = sum(columns.count for columns in written.policy_batches.values())
    assert json_to_parquet(tmp_path / "json", tmp_path / "parquet") == n_steps
    reader = ParquetReader(tmp_path / "parquet")
    assert reader.module_ids == sorted(POLICIES)
    for policy_id, columns in written.policy_batches.items():
        (batch,) = reader.iter_batches(module_id=policy_id, batch_size=n_steps, next_obs=True)
        for name in ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "t", "advantages"):
            np.testing.assert_array_equal(batch[name].astype(columns[name].dtype), columns[name], strict=True)
        assert batch["eps_id"].tolist() == list(map(str, columns["eps_id"]))
        assert batch["agent_id"].tolist() == columns["agent_index"].tolist()
    chunks = [chunk for some in reader.iter_episodes() for chunk in some]
    assert sum(chunk.get_return() for chunk in chunks) == sum(
        c["rewards"].sum() for c in written.policy_batches.values()
    )
    assert 0 < sum(chunk.is_terminated for chunk in chunks) < len(chunks)


def test_lines_are_the_same_but_for_packed_columns(tmp_path):
    batch = MultiAgentBatch({"p": SampleBatch({
        "obs": {"a": np.float32([[0.1, np.nan], [np.inf, 2]]), "b": np.arange(2)},
        "terminateds": np.array([True, False]),
        "infos": np.array([{"x": 1, "y": [1.5, "z"], "n": None}, {}], object),
        "seq_lens": np.array([1, 1], np.int32),
    })}, 2)  # fmt: skip
    lines = []
    for name, writer in (("theirs", RLlibWriter), ("ours", JsonWriter)):
        folder = tmp_path / name
        writer(str(folder), compress_columns=[]).write(batch.to_rllib() if writer is RLlibWriter else batch)
        [path] = folder.glob("*.json")
        lines.append(path.read_text())
    assert lines[0] == lines[1]


def test_a_worker_takes_rllibs_readers_and_writers(tmp_path):
    def of_theirs(io_context):
        return RLlibReader(str(tmp_path), RLlibIOContext())

    def to_theirs(io_context):
        return RLlibWriter(str(tmp_path))

    with our_worker(output=to_theirs) as worker:
        written = worker.sample()
    with our_worker(input_=of_theirs) as worker:
        assert_same(written, worker.sample())
    with our_worker(input_=of_theirs, rollout_fragment_length=40) as worker:
        assert worker.sample().count >= 40  # of several batches that were read
