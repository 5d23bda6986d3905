"""Methods of RLlib's RolloutWorker and EnvRunnerV2 in `fastmarl.legacy`: a test of its name each.

tests/rllib/test_legacy_api_table.py compares all members with RLlib's.
"""

import platform
import socket
import threading

import numpy as np
import pytest
import torch
from support.legacy import all_p0, clocks, config_with, same

from fastmarl.core.envs.context import EnvContext
from fastmarl.errors import BatchError, ConfigError, EnvCheckError, RunnerStoppedError
from fastmarl.legacy import MultiAgentBatch, PPOTorchPolicy, RolloutMetrics, RolloutWorker


@pytest.fixture
def make():
    """Makes workers, and stops them."""
    made = []

    def make_worker(worker_index=0, log_dir=None, **options):
        made.append(RolloutWorker(config=config_with(**options), worker_index=worker_index, log_dir=log_dir))
        return made[-1]

    yield make_worker
    for worker in made:
        worker.stop()


@pytest.fixture
def worker(make):
    return make()


@pytest.fixture
def single(make):
    """A worker with "default_policy" alone."""
    return make(policies=None, policy_mapping_fn=None)


# Sampling.


def test_sample(worker):
    batch = worker.sample()
    assert isinstance(batch, MultiAgentBatch)
    assert batch.count == batch.env_steps() == 2 * 20
    of_p0 = batch.policy_batches["p0"]
    assert of_p0["obs"].shape == of_p0["new_obs"].shape == (len(of_p0), 4)
    assert of_p0["advantages"].dtype == of_p0["value_targets"].dtype == np.float32
    assert {"actions", "rewards", "vf_preds", "action_logp", "action_dist_inputs", "eps_id", "t"} <= of_p0.keys()


def test_sample_with_a_fake_sampler(make):
    worker = make(fake_sampler=True)
    assert worker.sample() is worker.sample() is worker.last_batch


@pytest.mark.parametrize("how", [True, "bulk"])
def test_sample_of_packed_observations(make, how):
    packed = make(compress_observations=how).sample()
    plain = make().sample()
    assert len(str(packed["p0"]["obs"][0])) != len(str(plain["p0"]["obs"][0]))
    packed.decompress_if_needed()
    assert same(packed["p0"]["obs"], plain["p0"]["obs"])
    assert same(packed["p1"]["new_obs"], plain["p1"]["new_obs"])


def test_sample_with_count(worker):
    batch, count = worker.sample_with_count()
    assert count == batch.count == 40


def test_sample_and_learn(worker):
    before = worker.get_weights()
    info, count = worker.sample_and_learn(40, num_sgd_iter=2, sgd_minibatch_size=16, standardize_fields=["advantages"])
    assert count == 40
    assert info.keys() == {"p0", "p1"}
    assert all(np.isfinite(list(of_one["learner_stats"].values())).all() for of_one in info.values())
    n_updates = worker.get_policy("p0").num_grad_updates
    assert n_updates in (4, 6)  # of 2 or 3 minibatches each
    assert not same(before, worker.get_weights())
    with pytest.raises(BatchError, match="expected a batch of 41"):
        worker.sample_and_learn(41, 1, 16, [])


def test_get_metrics(make):
    worker = make(**clocks())
    worker.sample()
    metrics = worker.get_metrics()
    assert len(metrics) == 4 and worker.get_metrics() == []
    for of_one in metrics:
        assert isinstance(of_one, RolloutMetrics)
        assert (of_one.episode_length, of_one.episode_reward) == (10, 30.0)
        assert of_one.agent_rewards == {("a0", "p0"): 10.0, ("a1", "p1"): 20.0}
        assert of_one.perf_stats.keys() == worker.env_runner.perf_stats.keys()
        assert not of_one.episode_faulty


# Learning.


def test_learn_on_batch(make):
    worker = make(policies_to_train=["p1"])
    before = worker.get_weights()
    info = worker.learn_on_batch(worker.sample())
    assert info.keys() == {"p1"}
    assert info["p1"]["num_grad_updates_lifetime"] == worker.get_policy("p1").num_grad_updates == 1
    assert same(worker.get_weights(["p0"]), {"p0": before["p0"]})
    assert not same(worker.get_weights(["p1"]), {"p1": before["p1"]})


def test_compute_gradients(worker, single):
    before = worker.get_weights()
    gradients, info = worker.compute_gradients(worker.sample())
    assert gradients.keys() == {"p0", "p1"} and info["batch_count"] == 40
    shapes = [parameter.shape for parameter in worker.get_policy("p0").module.parameters()]
    assert [gradient.shape for gradient in gradients["p0"]] == shapes
    assert same(before, worker.get_weights())
    gradients, info = single.compute_gradients(single.sample(), single_agent=True)
    assert isinstance(gradients, list) and {"batch_count", "learner_stats"} == info.keys()


def test_apply_gradients(make):
    worker, other = make(policies_to_train=["p0"]), make()
    other.set_weights(worker.get_weights())
    batch = worker.sample()
    other.learn_on_batch(batch)
    worker.apply_gradients(other.compute_gradients(batch)[0])
    gradients, _ = worker.compute_gradients(batch)
    before = worker.get_weights()
    worker.apply_gradients({**gradients, "p1": [np.ones_like(g) for g in gradients["p0"]]})
    assert not same(worker.get_weights("p0"), {"p0": before["p0"]})
    assert same(worker.get_weights("p1"), {"p1": before["p1"]})
    with pytest.raises(BatchError, match="one for each parameter"):
        worker.apply_gradients({"p0": gradients["p0"][1:]})
    with pytest.raises(BatchError, match="shape"):
        worker.apply_gradients({"p0": [g[..., None] for g in gradients["p0"]]})


def test_apply_gradients_takes_the_step_of_learn_on_batch(make):
    one, other = make(), make()
    other.set_weights(one.get_weights())
    batch = one.sample()
    gradients, _ = one.compute_gradients(batch)
    one.apply_gradients(gradients)
    other.learn_on_batch(batch)
    assert same(one.get_weights(), other.get_weights())


# setup_torch_data_parallel: see test_legacy_data_parallel.py.

# Policies.


def test_get_policy(worker, single):
    assert isinstance(worker.get_policy("p1"), PPOTorchPolicy)
    assert worker.get_policy("p9") is worker.get_policy() is None
    assert single.get_policy() is single.policy_map["default_policy"]


def test_add_policy(worker):
    class Own(PPOTorchPolicy):
        DEFAULTS = {**PPOTorchPolicy.DEFAULTS, "mine": 1}  # noqa: RUF012

    worker.sample()
    state = worker.get_policy("p1").get_state()
    mapping = lambda agent_id, episode: "p0" if agent_id == 0 else "new"  # noqa: E731
    added = worker.add_policy("new", Own, config={"mine": 2, "lr": 0.5}, policy_state=state, policy_mapping_fn=mapping,
                              policies_to_train=["new"])  # fmt: skip
    assert worker.policy_map["new"] is added and type(added) is Own
    assert (added.config["mine"], added.config["lr"]) == (2, 0.5)
    assert same(added.get_weights(), state["weights"])
    assert worker.get_policies_to_train() == {"new"}
    acted = set()
    while "new" not in acted or "p1" in worker.sample().policy_batches:  # running episodes go on without it
        acted |= worker.sample().policy_batches.keys()
    assert "new" in worker.learn_on_batch(worker.sample())
    given = worker.add_policy("given", policy=PPOTorchPolicy(added.module))
    assert worker.policy_map["given"] is given
    for wrong, text in (
        ({"policy_id": "p0"}, "p0"),
        ({"policy_id": "x", "policy": given, "config": {}}, "or arguments to make one"),
    ):
        with pytest.raises(ConfigError, match=text):
            worker.add_policy(**wrong)
    with pytest.raises(ConfigError, match="no option 'lrr'"):
        worker.add_policy("x", config={"lrr": 1})
    assert "x" not in worker.policy_map
    worker.add_policy("x")


def test_remove_policy(worker):
    worker.sample()
    worker.remove_policy(policy_id="p1", policy_mapping_fn=all_p0, policies_to_train=["p0"])
    assert list(worker.policy_map) == ["p0"]
    batch = worker.sample()
    assert "p1" in batch.policy_batches, "it acts on in running episodes"
    assert worker.learn_on_batch(batch).keys() == {"p0"}
    while "p1" in batch.policy_batches:
        batch = worker.sample()
    assert list(worker.policy_map.acting) == ["p0"]
    with pytest.raises(ConfigError):
        worker.remove_policy(policy_id="p1")
    with pytest.raises(ConfigError):
        worker.remove_policy(policy_id="p0")


def test_set_policy_mapping_fn(worker):
    worker.sample()
    worker.set_policy_mapping_fn(all_p0)
    assert worker.policy_mapping_fn is all_p0
    while "p1" in worker.sample().policy_batches:
        pass
    worker.set_policy_mapping_fn(None)
    assert worker.policy_mapping_fn is all_p0
    with pytest.raises(ConfigError, match="policy_mapping_fn"):
        worker.set_policy_mapping_fn(lambda agent_id: "p0")


def test_set_is_policy_to_train(worker):
    worker.set_is_policy_to_train(["p1"])
    assert worker.is_policy_to_train("p1", None) and not worker.is_policy_to_train("p0", None)
    worker.set_is_policy_to_train(lambda policy_id, batch: policy_id == "p0" and batch is not None)
    batch = worker.sample()
    assert worker.learn_on_batch(batch).keys() == {"p0"}
    with pytest.raises(ConfigError, match="policy ids or a callable"):
        worker.set_is_policy_to_train("p0")


def test_get_policies_to_train(worker):
    assert worker.get_policies_to_train() == {"p0", "p1"}
    worker.set_is_policy_to_train(lambda policy_id, batch: batch == policy_id)
    assert worker.get_policies_to_train("p0") == {"p0"}


def test_for_policy(worker, single):
    assert worker.for_policy(lambda policy, k: (policy, k), "p1", k=3) == (worker.policy_map["p1"], 3)
    assert single.for_policy(lambda policy: policy) is single.get_policy()
    with pytest.raises(ConfigError, match="no policy 'p7'"):
        worker.for_policy(lambda policy: policy, "p7")


def test_foreach_policy(worker):
    assert worker.foreach_policy(lambda policy, policy_id, k: (policy_id, k), k=1) == [("p0", 1), ("p1", 1)]


def test_foreach_policy_to_train(worker):
    worker.set_is_policy_to_train(["p1"])
    assert worker.foreach_policy_to_train(lambda policy, policy_id: policy_id) == ["p1"]


# Weights, filters, state.


def test_get_weights(worker):
    weights = worker.get_weights()
    assert weights.keys() == {"p0", "p1"}
    assert all(isinstance(array, np.ndarray) for array in weights["p0"].values())
    assert worker.get_weights(["p1"]).keys() == worker.get_weights("p1").keys() == {"p1"}


def test_set_weights(make, caplog):
    one, other = make(), make(seed=4)
    weights = one.get_weights()
    other.set_weights({**weights, "p7": {}}, {"timestep": 12}, weights_seq_no=5)
    assert "no policy 'p7'" in caplog.text
    assert same(other.get_weights(), weights) and other.weights_seq_no == 5
    assert other.get_policy("p0").global_timestep == 12
    again = make(seed=9).get_weights()
    other.set_weights(again, weights_seq_no=5)
    assert same(other.get_weights(), weights), "it has those of number 5"
    other.set_weights(again, weights_seq_no=6)
    assert same(other.get_weights(), again)


def test_set_global_vars(worker):
    worker.set_is_policy_to_train(["p0"])
    worker.set_global_vars({"timestep": 7, "num_grad_updates_per_policy": {"p0": 3, "p1": 4}, "mine": "x"})
    policies = worker.policy_map
    assert (policies["p0"].global_timestep, policies["p0"].num_grad_updates) == (7, 3)
    assert (policies["p1"].global_timestep, policies["p1"].num_grad_updates) == (0, 0)
    worker.set_is_policy_to_train(["p0", "p1"])
    worker.set_global_vars({"timestep": 9}, policy_ids=["p1"])
    assert [policy.global_timestep for policy in policies.values()] == [7, 9]


def test_get_global_vars(worker):
    assert worker.get_global_vars() == {"timestep": 0, "num_grad_updates_per_policy": {}}
    worker.set_global_vars({"timestep": 7, "num_grad_updates_per_policy": {"p0": 3}, "mine": "x"})
    worker.set_global_vars({"timestep": 8, "num_grad_updates_per_policy": {"p1": 1}})
    assert worker.get_global_vars() == {"timestep": 8, "num_grad_updates_per_policy": {"p0": 3, "p1": 1}, "mine": "x"}


def counts(filters):
    return {policy_id: [moments.count for moments in each.rs] for policy_id, each in filters.items()}


def test_get_filters(make):
    assert make().get_filters() == {}
    worker = make(observation_filter="MeanStdFilter")
    worker.sample()
    filters = worker.get_filters(flush_after=True)
    assert filters.keys() == {"p0", "p1"}
    assert counts(filters)["p0"][0] == filters["p0"].buffer[0].count > 30
    assert worker.get_filters()["p0"].buffer[0].count == 0
    assert counts(worker.get_filters()) == counts(filters)


def test_sync_filters(make):
    workers = [make(worker_index=i, observation_filter="MeanStdFilter") for i in (0, 1, 2)]
    for worker in workers[1:]:
        worker.sample()
    local = workers[0].filters
    for worker in workers[1:]:
        for policy_id, changes in worker.get_filters(flush_after=True).items():
            local[policy_id].apply_changes(changes)
    merged = workers[0].get_filters()
    for worker in workers[1:]:
        worker.sync_filters(merged)
        assert counts(worker.get_filters()) == counts(merged)
        worker.sample()
        assert worker.get_filters()["p0"].rs[0].count > merged["p0"].rs[0].count
    with pytest.raises(ConfigError, match="got none for"):
        workers[0].sync_filters({})


def test_get_state(make):
    worker = make(observation_filter="MeanStdFilter", policies_to_train=["p1"], checkpoint_trainable_policies_only=True)
    worker.sample_and_learn(40, 1, 0, [])
    state = worker.get_state()
    assert state["policy_ids"] == ["p0", "p1"]
    assert state["policy_states"].keys() == {"p1"}
    assert same(state["policy_states"]["p1"]["weights"], worker.get_weights()["p1"])
    assert state["filters"].keys() == {"p0", "p1"}


def test_set_state(make):
    one, other = (make(observation_filter="MeanStdFilter", worker_index=i) for i in (0, 1))
    one.add_policy("new", policy_mapping_fn=lambda agent_id, episode: "new", config={"lr": 0.25})
    one.set_is_policy_to_train(["new"])
    batch = one.sample()
    while "new" not in batch.policy_batches:
        batch = one.sample()
    one.learn_on_batch(batch)
    other.set_state(one.get_state())
    assert list(other.policy_map) == ["p0", "p1", "new"]
    assert other.get_policy("new").config["lr"] == 0.25
    assert other.get_policy("new").num_grad_updates == 1
    assert same(other.get_weights(), one.get_weights())
    assert counts(other.get_filters()) == counts(one.get_filters())
    assert other.get_policies_to_train() == {"new"}
    for worker in (one, other):  # the optimizers go on alike
        worker.learn_on_batch(batch)
    assert same(other.get_weights(), one.get_weights())
    assert list(other.sample().policy_batches) == ["new"]


# Envs.


def test_foreach_env(make):
    worker = make(**clocks())
    assert worker.foreach_env(lambda env: env.length) == [10, 10]
    with pytest.raises(ConfigError, match='gym_env_vectorize_mode="sync"'):
        make(**clocks(gym_env_vectorize_mode="async", env_worker_start_method="fork")).foreach_env(len)


def test_foreach_env_with_context(make):
    found = make(worker_index=3, **clocks(env_config={"k": 1})).foreach_env_with_context(lambda env, context: context)
    assert all(isinstance(context, EnvContext) and context["k"] == 1 for context in found)
    assert [(context.worker_index, context.vector_index) for context in found] == [(3, 0), (3, 1)]


def test_get_spaces(worker):
    spaces = worker.get_spaces()
    assert {"p0", "p1", "__env__"} <= spaces.keys()
    assert spaces["p0"][0].shape == (4,) and spaces["p0"][1].n == 2


def test_make_env(make):
    worker = make(**clocks())
    worker.sample()
    before = worker.foreach_env(lambda env: env)
    worker.make_env()
    assert not set(map(id, worker.foreach_env(lambda env: env))) & set(map(id, before))
    assert worker.sample().count == 40


# The worker itself.


def test_apply(worker):
    assert worker.apply(lambda given, a, b: (given, a, b), 1, b=2) == (worker, 1, 2)


def test_lock(worker):
    worker.lock()
    waiting = threading.Thread(target=worker.lock, daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    worker.unlock()
    waiting.join(10)
    assert not waiting.is_alive()


def test_unlock(worker):
    worker.lock()
    worker.unlock()
    worker.lock()
    worker.unlock()


def test_creation_args():
    config = config_with()
    with RolloutWorker(config=config, worker_index=2, num_workers=4) as worker:
        arguments = worker.creation_args()
        assert (arguments["config"], arguments["worker_index"], arguments["num_workers"]) == (config, 2, 4)
    with RolloutWorker(**arguments) as again:
        assert again.worker_index == 2


def test_ping(worker):
    assert worker.ping() == "pong"


def test_get_host(worker):
    assert worker.get_host() == platform.node()


def test_get_node_ip(worker):
    assert socket.inet_aton(worker.get_node_ip())


def test_find_free_port(worker):
    with socket.socket() as server:
        server.bind(("", worker.find_free_port()))


def test_assert_healthy(worker):
    worker.assert_healthy()
    worker.stop()
    with pytest.raises(RunnerStoppedError):
        worker.assert_healthy()


def test_assert_healthy_without_envs(worker):
    worker.config.env_config["unknown"] = 1
    with pytest.raises(EnvCheckError):
        worker.make_env()
    with pytest.raises(RunnerStoppedError, match="make_env"):
        worker.assert_healthy()
    del worker.config.env_config["unknown"]
    worker.make_env()
    worker.assert_healthy()


def test_stop(make, tmp_path):
    worker = make(output=str(tmp_path))
    worker.sample()
    worker.stop()
    worker.stop()
    with pytest.raises(RunnerStoppedError):
        worker.sample()


# EnvRunnerV2.


def test_run(make):
    outputs = make(**clocks()).env_runner.run()
    first = [next(outputs) for _ in range(5)]
    assert [type(output) for output in first] == [RolloutMetrics] * 4 + [MultiAgentBatch]
    assert first[-1].count == 40


def test_step(make):
    env_runner = make(**clocks(rollout_fragment_length=15)).env_runner
    made = [env_runner.step() for _ in range(15)]
    assert made[:14] == [[]] * 14
    assert [type(output) for output in made[14]] == [RolloutMetrics] * 2 + [MultiAgentBatch]
    assert set(env_runner.perf_stats.values()) != {0.0}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_worker_learns_to_balance():
    """Every agent balances its pole for 250 steps of 500, on average."""
    torch.manual_seed(1)
    options = {"lr": 1e-3, "lambda": 0.95, "use_kl_loss": False, "vf_clip_param": 1e4, "clip_param": 0.2,
               "vf_loss_coeff": 0.01, "grad_clip": 0.5}  # fmt: skip
    config = config_with(num_envs_per_env_runner=8, rollout_fragment_length=250, policy_config=options, seed=2,
                         model_config={"fcnet_hiddens": [64, 64]})  # fmt: skip
    returns = []
    with RolloutWorker(config=config) as worker:
        for _ in range(100):
            worker.sample_and_learn(2000, 10, 250, ["advantages"])
            returns += [np.mean(list(metrics.agent_rewards.values())) for metrics in worker.get_metrics()]
            if np.mean(returns[-40:]) >= 250:
                return
    pytest.fail(f"mean return {np.mean(returns[-40:])}")
