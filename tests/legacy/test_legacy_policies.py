"""Policies of a legacy worker: hooks, memory, losses of one's own, acting beside the runner."""

import numpy as np
import pytest
import torch
from support.legacy import clocks, config_with, same
from support.masked_env import PLACES, SPACES, MaskedEnv, N
from support.scenario_envs import StepCounter

import fastmarl
from fastmarl.errors import BatchError, ConfigError, ModuleOutputError, RunnerBusyError
from fastmarl.legacy import Policy, PolicySpec, PPOTorchPolicy, RolloutWorker, SampleBatch, TorchPolicy

LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}


class ByHook(PPOTorchPolicy):
    """PPO by the method that is called for each trajectory."""

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        return super().postprocess_trajectory(sample_batch, other_agent_batches, episode)


@pytest.mark.parametrize("options", [
    {},
    {"model_config": LSTM, "max_seq_len": 7},
    {"batch_mode": "complete_episodes", "model_config": LSTM},
    {"policy_config": {"use_gae": False}},
    {"policy_config": {"use_gae": False, "use_critic": False}},
    {"env": "fastmarl.gridworld", "env_config": {}, "policies": None, "policy_mapping_fn": None},
])  # fmt: skip
def test_advantages_of_all_trajectories_at_once_are_those_of_the_hook(options):
    batches = []
    for policy_class in (PPOTorchPolicy, ByHook):
        with RolloutWorker(config=config_with(**options), default_policy_class=policy_class) as worker:
            batches.append([worker.sample() for _ in range(3)])
    for one, other in zip(*batches, strict=True):
        assert list(one.policy_batches) == list(other.policy_batches)
        for policy_id, columns in one.policy_batches.items():
            of_hook = other.policy_batches[policy_id]
            assert set(columns) == set(of_hook)
            for name, column in columns.items():
                if name in ("infos", "eps_id"):
                    continue
                if name in ("advantages", "value_targets", "values_bootstrapped"):  # forward passes of other sizes
                    np.testing.assert_allclose(column, of_hook[name], rtol=1e-5, atol=1e-5)
                else:
                    assert same(column, of_hook[name]), name


def test_a_hook_that_samples_is_refused_and_nothing_is_lost():
    refused = []

    class CallsBack(PPOTorchPolicy):
        def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
            if not refused:
                with pytest.raises(RunnerBusyError, match=r"within postprocess_trajectory\(\)") as caught:
                    worker.sample()
                refused.append(caught.value)
                raise refused[0]
            return super().postprocess_trajectory(sample_batch, other_agent_batches, episode)

    with RolloutWorker(config=config_with(), default_policy_class=CallsBack) as worker:
        with pytest.raises(RunnerBusyError):
            worker.sample()
        batches = [worker.sample() for _ in range(3)]
    names = ("eps_id", "agent_index", "t")
    for policy_id in ("p0", "p1"):
        rows = [zip(*(batch[policy_id][name].tolist() for name in names), strict=True) for batch in batches]
        steps = [step for of_batch in rows for step in of_batch]
        assert len(set(steps)) == len(steps)
        assert {t for _, _, t in steps} >= {0, 1, 2}, "from the first step on"


def test_sequences_begin_with_the_states_their_agents_had():
    config = config_with(**clocks(policies={"p0": StepCounter(), "p1": StepCounter()}), model_config={}, max_seq_len=4,
                         rollout_fragment_length=15, num_envs_per_env_runner=1)  # fmt: skip
    with RolloutWorker(config=config, default_policy_class=_Plain) as worker:
        columns = worker.sample()["p0"]
        assert columns["seq_lens"].tolist() == [4, 4, 2, 4, 1]
        assert columns["state_in_0"][:, 1].tolist() == columns["state_in_1"].tolist() == [0, 4, 8, 0, 4]
        assert columns["count"][:, 1].tolist() == [*range(10), *range(5)]
        assert worker.sample()["p0"]["state_in_1"].tolist() == [5, 9, 0, 4, 8], "episodes go on"


class _Plain(Policy):
    def learn_on_batch(self, samples):
        return {}


def test_padding_changes_no_loss():
    """The loss of whole sequences is that of the same steps, whatever they are padded to."""
    with RolloutWorker(config=config_with(model_config=LSTM, max_seq_len=5)) as worker:
        batch, policy = worker.sample()["p0"], worker.get_policy("p0")
        losses = []
        for length in (5, 9):
            padded = batch.copy()
            padded.right_zero_pad(length)
            losses.append(policy.compute_gradients(padded))
    (one, of_one), (other, of_other) = losses
    for gradient, another in zip(one, other, strict=True):
        np.testing.assert_allclose(gradient, another, rtol=1e-4, atol=1e-6)
    assert of_one["learner_stats"]["total_loss"] == pytest.approx(of_other["learner_stats"]["total_loss"], rel=1e-5)


class ByAutograd(PPOTorchPolicy):
    """A class with a loss of its own is not taken for PPO, whatever that loss is."""

    def loss(self, model, dist_class, train_batch):
        return super().loss(model, dist_class, train_batch)


@pytest.mark.parametrize("options", [
    {},
    {"entropy_coeff": 0.1, "clip_param": 0.05, "vf_clip_param": 0.3, "vf_loss_coeff": 0.5, "kl_coeff": 0.7},
    {"use_kl_loss": False, "grad_clip": 0.01},
    {"use_critic": False, "use_gae": False},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("model", [{"vf_share_layers": False}, {"fcnet_activation": "relu", "fcnet_hiddens": [9, 8]}])
def test_compiled_gradients_are_those_of_the_loss(model, options, monkeypatch):
    found = []
    for policy_class in (ByAutograd, PPOTorchPolicy):
        config = config_with(model_config=model, policy_config={"lr": 0.01, **options})
        with RolloutWorker(config=config, default_policy_class=policy_class) as worker:
            batch, policy = worker.sample()["p0"], worker.get_policy("p0")
            batch["action_logp"] = batch["action_logp"] + np.linspace(-0.2, 0.2, batch.count, dtype=np.float32)
            batch["action_dist_inputs"] = batch["action_dist_inputs"][::-1].copy()
            with monkeypatch.context() as patched:
                if policy_class is PPOTorchPolicy:
                    patched.setattr(PPOTorchPolicy, "loss", lambda *arguments: pytest.fail("autograd was asked"))
                found.append((policy.compute_gradients(batch), policy.learn_on_batch(batch), policy.get_weights()))
    ((want, of_want), learned, weights), ((got, of_got), also_learned, also_weights) = found
    for theirs, ours in zip(want, got, strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5 * max(1.0, np.abs(theirs).max()))
    for theirs, ours in ((of_want, of_got), (learned, also_learned)):
        assert ours["learner_stats"] == pytest.approx(theirs["learner_stats"], rel=1e-3, abs=1e-5)
    for name, theirs in weights.items():
        assert np.abs(also_weights[name] - theirs).mean() < 1e-3  # Adam's first step has the sign of a gradient


def test_a_module_that_is_changed_is_read_again():
    with RolloutWorker(config=config_with(policy_config={"lr": 0.0})) as worker:
        batch, policy = worker.sample()["p0"], worker.get_policy("p0")
        policy.learn_on_batch(batch)
        policy.module.pi = torch.nn.Linear(policy.module.pi.in_features, policy.module.pi.out_features)
        gradients, _ = policy.compute_gradients(batch)
        by_autograd = ByAutograd(policy.module, policy.config).compute_gradients(batch)[0]
    for ours, theirs in zip(gradients, by_autograd, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


class Reinforce(TorchPolicy):
    """A loss of one's own."""

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        sample_batch["returns"] = np.cumsum(sample_batch["rewards"][::-1])[::-1].copy()
        return sample_batch

    def loss(self, model, dist_class, train_batch):
        logits, state = model(train_batch)
        assert state == [] and train_batch["obs"].dtype == torch.float32
        loss = -(dist_class(logits, model).logp(train_batch["actions"]) * train_batch["returns"]).mean()
        model.tower_stats["loss"] = loss
        return loss


def test_a_loss_of_ones_own_in_a_spec():
    spec = PolicySpec(policy_class=Reinforce, config={"lr": 0.1, "grad_clip": 0.5})
    with RolloutWorker(config=config_with(policies={"p0": spec, "p1": None})) as worker:
        batch = worker.sample()
        assert "returns" in batch["p0"] and "advantages" in batch["p1"]
        policy = worker.get_policy("p0")
        losses = [policy.learn_on_batch(batch["p0"])["learner_stats"] for _ in range(20)]
    assert losses[-1]["loss"] < losses[0]["loss"]
    assert losses[0].keys() == {"loss", "grad_gnorm", "allreduce_latency"}


def test_errors_name_missing_methods_and_unknown_options():
    with RolloutWorker(config=config_with(), default_policy_class=TorchPolicy) as worker:
        with pytest.raises(NotImplementedError, match=r"TorchPolicy must implement loss\(model, dist_class"):
            worker.learn_on_batch(worker.sample())
        with pytest.raises(ConfigError, match="no option 'gama'"):
            PPOTorchPolicy(worker.get_policy("p0").module, {"gama": 1})
    with RolloutWorker(config=config_with(), default_policy_class=Policy) as worker:
        for method in ("learn_on_batch", "compute_gradients"):
            with pytest.raises(NotImplementedError, match=f"Policy must implement {method}"):
                getattr(worker, method)(worker.sample())


class NoValues(fastmarl.RLModule):
    def setup(self):
        self.net = torch.nn.Linear(4, 2)

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.net(batch["obs"])}


def test_a_module_without_values():
    options = {"policies": {"p0": fastmarl.RLModuleSpec(module_class=NoValues), "p1": None}}
    with (
        RolloutWorker(config=config_with(**options)) as worker,
        pytest.raises(ModuleOutputError, match="needs the output 'vf_preds'"),
    ):
        worker.sample()
    no_values = fastmarl.RLModuleSpec(module_class=NoValues)
    without = PolicySpec(module=no_values, config={"use_gae": False, "use_critic": False})
    with RolloutWorker(config=config_with(policies={"p0": without, "p1": None})) as worker:
        batch = worker.sample()
        assert np.isfinite(worker.learn_on_batch(batch)["p0"]["learner_stats"]["policy_loss"])
        worker.get_policy("p0").config["use_critic"] = True
        with pytest.raises(ModuleOutputError, match=r"value_function\(\) needs the output"):
            worker.learn_on_batch(batch)


@pytest.mark.parametrize("model_config", [{"fcnet_hiddens": [8]}, LSTM])
def test_compute_actions_matches_the_runner(model_config):
    with RolloutWorker(config=config_with(model_config=model_config)) as worker:
        policy, columns = worker.get_policy("p0"), worker.sample()["p0"]
        obs = columns["obs"][:6]
        actions, states, extra = policy.compute_actions(obs, explore=False)
        assert actions.shape == (6,) and len(states) == policy.num_state_tensors() == (2 if model_config is LSTM else 0)
        assert same(actions, extra["action_dist_inputs"].argmax(-1))
        single, state, of_one = policy.compute_single_action(obs[0], explore=False)
        assert single == actions[0] and len(state) == len(states)
        np.testing.assert_allclose(of_one["action_dist_inputs"], extra["action_dist_inputs"][0], rtol=1e-5)
        if model_config is LSTM:  # and on from there
            _, _, of_next = policy.compute_single_action(obs[1], state, explore=False)
            np.testing.assert_allclose(of_next["action_dist_inputs"], columns["action_dist_inputs"][1], rtol=1e-4)
            with pytest.raises(ConfigError, match="expected 2 states, got 1"):
                policy.compute_actions(obs, states[:1])
        else:
            logp = policy.compute_log_likelihoods(columns["actions"], columns["obs"])
            np.testing.assert_allclose(logp, columns["action_logp"], rtol=1e-4, atol=1e-5)
        _, _, drawn = policy.compute_actions(obs)
        assert drawn["action_logp"].shape == (6,)


def test_errors_name_unknown_policies():
    with RolloutWorker(config=config_with()) as worker:
        batch = worker.sample()
        batch.policy_batches["p9"] = SampleBatch(dict(batch["p0"]))
        with pytest.raises(ConfigError, match=r"no policy 'p9'; the policies are \['p0', 'p1'\]"):
            worker.learn_on_batch(batch)


class Unmasked(fastmarl.RLModule):
    """Knows nothing of masks."""

    def setup(self):
        self.pi, self.vf = torch.nn.Linear(2, N), torch.nn.Linear(2, 1)

    def _forward(self, batch, **kwargs):
        obs = batch["obs"]["vector"] if isinstance(batch["obs"], dict) else batch["obs"]
        return {"action_dist_inputs": 3 * self.pi(obs), "vf_preds": self.vf(obs).squeeze(-1)}


def masked_worker(place, space, module):
    """Make a worker whose module is of this class, or the default network with this model_config."""
    is_own = isinstance(module, type)
    return RolloutWorker(
        config=fastmarl.legacy.RolloutWorkerConfig(
            env=MaskedEnv,
            env_config={"space": space, "place": place},
            num_envs_per_env_runner=2,
            rollout_fragment_length=20,
            policies={"all": PolicySpec(module=fastmarl.RLModuleSpec(module))} if is_own else ["all"],
            policy_mapping_fn=lambda agent_id, episode, worker: "all",
            model_config={} if is_own else module,
            policy_config={"lr": 0.0},
            seed=0,
        )
    )


@pytest.mark.parametrize("module", [Unmasked, {"fcnet_hiddens": [8]}, LSTM], ids=["own", "default", "lstm"])
@pytest.mark.parametrize(("place", "space"), list(zip(PLACES, SPACES, strict=True)))
def test_before_an_update_masked_policies_are_as_they_were(space, place, module):
    with masked_worker(place, space, module) as worker:
        batch = worker.sample()
        stats = worker.learn_on_batch(batch)["all"]["learner_stats"]
        assert abs(stats["kl"]) < 1e-6
        assert stats["policy_loss"] == pytest.approx(-batch["all"]["advantages"].mean(), abs=1e-5)
        if place != "info" and module is not LSTM:
            policy, columns = worker.get_policy("all"), batch["all"]
            logp = policy.compute_log_likelihoods(columns["actions"], columns["obs"])
            np.testing.assert_allclose(logp, columns["action_logp"], atol=1e-5)


class Named(Unmasked):
    """Has an output with the name of the masks."""

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch, **kwargs)
        return {**outputs, "action_mask": torch.ones_like(outputs["vf_preds"])}


def test_an_output_with_the_name_of_recorded_masks_is_refused():
    for place in ("info", "action_mask"):
        with masked_worker(place, "discrete", Named) as worker:
            if place == "info":
                with pytest.raises(BatchError, match=r"Named has an output 'action_mask', .*; rename the output"):
                    worker.sample()
            else:
                assert abs(worker.learn_on_batch(worker.sample())["all"]["learner_stats"]["kl"]) < 1e-6


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize(
    ("module", "space"), [(Unmasked, "discrete"), (Unmasked, "multi_discrete"), (LSTM, "started")], ids=str
)
def test_compute_actions_of_masked_policies_are_legal(module, space, explore):
    with masked_worker("action_mask", space, module) as worker:
        obs = worker.sample()["all"]["obs"]
        actions, _, extra = worker.get_policy("all").compute_actions(obs, explore=explore)
        least = np.finfo(np.float32).min
        assert np.array_equal(extra["action_dist_inputs"] == least, obs["action_mask"] == 0)
        firsts = np.cumsum([0, *([3] if space == "multi_discrete" else [])])
        for first, part in zip(firsts, np.reshape(actions, (len(actions), -1)).T, strict=True):
            assert obs["action_mask"][np.arange(len(part)), first + part].all()
