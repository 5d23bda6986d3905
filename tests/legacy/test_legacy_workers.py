"""Errors of workers, and effects of one call on later ones; tests/rllib/test_legacy_api_table.py asks each member."""

import numpy as np
import pytest
import torch
from support.legacy import all_p0, clocks, config_with, same

from fastmarl.errors import BatchError, ConfigError, EnvCheckError, RunnerStoppedError
from fastmarl.legacy import PPOTorchPolicy, RolloutWorker


@pytest.fixture
def worker(make):
    return make()


@pytest.mark.parametrize("how", [True, "bulk"])
def test_sample_of_packed_observations(make, how):
    packed = make(compress_observations=how).sample()
    plain = make().sample()
    assert len(str(packed["p0"]["obs"][0])) != len(str(plain["p0"]["obs"][0]))
    packed.decompress_if_needed()
    assert same(packed["p0"]["obs"], plain["p0"]["obs"])
    assert same(packed["p1"]["new_obs"], plain["p1"]["new_obs"])


def test_a_batch_of_another_size_is_not_learned_from(worker):
    with pytest.raises(BatchError, match="expected a batch of 41"):
        worker.sample_and_learn(41, 1, 16, [])


def test_gradients_of_a_single_policy(make):
    single = make(policies=None, policy_mapping_fn=None)
    gradients, info = single.compute_gradients(single.sample(), single_agent=True)
    assert isinstance(gradients, list) and info.keys() == {"batch_count", "learner_stats"}


def test_apply_gradients_takes_the_step_of_learn_on_batch(make):
    one, other = make(), make()
    other.set_weights(one.get_weights())
    batch = one.sample()
    gradients, _ = one.compute_gradients(batch)
    one.apply_gradients(gradients)
    other.learn_on_batch(batch)
    assert same(one.get_weights(), other.get_weights())


def test_gradients_that_do_not_fit(worker):
    gradients, _ = worker.compute_gradients(worker.sample())
    with pytest.raises(BatchError, match="one per parameter"):
        worker.apply_gradients({"p0": gradients["p0"][1:]})
    with pytest.raises(BatchError, match="shape"):
        worker.apply_gradients({"p0": [g[..., None] for g in gradients["p0"]]})


def test_an_added_policy_acts_in_new_episodes(worker):
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


def test_a_removed_policy_acts_on_in_running_episodes(worker):
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


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda w: w.add_policy("x", policy=w.get_policy("p0"), config={}), "pass either policy, or"),
        (lambda w: w.add_policy("x", config={"lrr": 1}), "no option 'lrr'"),
        (lambda w: w.for_policy(len, "p7"), "no policy 'p7'"),
        (lambda w: w.remove_policy(policy_id="p7"), "no policy 'p7'"),
        (lambda w: w.set_policy_mapping_fn(lambda agent_id: "p0"), "policy_mapping_fn"),
        (lambda w: w.set_is_policy_to_train("p0"), "policy ids or a callable"),
        (lambda w: w.sync_filters({}), "got none for"),
    ],
)
def test_wrong_arguments_change_nothing(make, act, text):
    worker = make(observation_filter="MeanStdFilter")
    with pytest.raises(ConfigError, match=text):
        act(worker)
    assert list(worker.policy_map) == ["p0", "p1"] and worker.get_policies_to_train() == {"p0", "p1"}


def test_weights_of_a_known_number_are_not_copied(make, caplog):
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


def test_global_vars_reach_the_policies_that_learn(worker):
    worker.set_is_policy_to_train(["p0"])
    worker.set_global_vars({"timestep": 7, "num_grad_updates_per_policy": {"p0": 3, "p1": 4}, "mine": "x"})
    policies = worker.policy_map
    assert (policies["p0"].global_timestep, policies["p0"].num_grad_updates) == (7, 3)
    assert (policies["p1"].global_timestep, policies["p1"].num_grad_updates) == (0, 0)
    worker.set_is_policy_to_train(["p0", "p1"])
    worker.set_global_vars({"timestep": 9}, policy_ids=["p1"])
    assert [policy.global_timestep for policy in policies.values()] == [7, 9]


def counts(filters):
    return {policy_id: [moments.count for moments in each.rs] for policy_id, each in filters.items()}


def test_a_restored_worker_goes_on_alike(make):
    one, other = (make({"worker_index": i}, observation_filter="MeanStdFilter") for i in (0, 1))
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


def test_envs_in_other_processes_are_not_called(make):
    with pytest.raises(ConfigError, match='gym_env_vectorize_mode="sync"'):
        make(**clocks(gym_env_vectorize_mode="async", env_worker_start_method="fork")).foreach_env(len)


def test_made_envs_are_new(make):
    worker = make(**clocks())
    worker.sample()
    before = worker.foreach_env(lambda env: env)
    worker.make_env()
    assert not set(map(id, worker.foreach_env(lambda env: env))) & set(map(id, before))
    assert worker.sample().count == 40


def test_a_stopped_worker_is_not_healthy(worker):
    worker.assert_healthy()
    worker.stop()
    with pytest.raises(RunnerStoppedError):
        worker.assert_healthy()


def test_a_worker_that_could_not_make_its_envs_is_not_healthy(worker):
    worker.config.env_config["unknown"] = 1
    with pytest.raises(EnvCheckError):
        worker.make_env()
    with pytest.raises(RunnerStoppedError, match="make_env"):
        worker.assert_healthy()
    del worker.config.env_config["unknown"]
    worker.make_env()
    worker.assert_healthy()


def test_a_worker_may_be_stopped_twice(make, tmp_path):
    worker = make(output=str(tmp_path))
    worker.sample()
    worker.stop()
    worker.stop()
    with pytest.raises(RunnerStoppedError):
        worker.sample()


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
