"""`fastmarl.legacy` computes the same results for learning as RLlib's old API stack."""

import itertools
import random

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_torch_policy import PPOTorchPolicy as RLlibPPOTorchPolicy
from ray.rllib.evaluation.postprocessing import compute_advantages
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils import sgd as rllib_sgd
from support.legacy_api.faces import Ours, Theirs

import fastmarl
from fastmarl.errors import BatchError
from fastmarl.legacy import PPOTorchPolicy
from fastmarl.legacy.batches.sample_batch import from_rllib
from fastmarl.legacy.policies import sgd
from fastmarl.legacy.policies.ppo_torch_policy import add_advantages

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib's and Gymnasium's own
OBS_SPACE = gym.spaces.Box(-1, 1, (5,), np.float32)
ACTION_SPACES = [
    gym.spaces.Discrete(3),
    gym.spaces.MultiDiscrete([3, 2]),
    gym.spaces.Box(-1, 1, (2,), np.float32),
]  # fmt: skip


@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    lambda_=st.sampled_from([0.0, 0.95, 1.0]),
    use=st.sampled_from([(True, True), (False, True), (False, False)]),
)
def test_advantages(lengths, seed, gamma, lambda_, use):
    rng = np.random.default_rng(seed)
    n, last_values = sum(lengths), rng.standard_normal(len(lengths)).round(2)
    columns = {name: rng.standard_normal(n).astype(np.float32) for name in ("rewards", "vf_preds")}
    use_gae, use_critic = use
    config = {"gamma": gamma, "lambda": lambda_, "use_gae": use_gae, "use_critic": use_critic}
    edges = np.cumsum([0, *lengths])
    expected = []
    for (begin, end), last in zip(itertools.pairwise(edges), last_values, strict=True):
        of_one = SampleBatch({name: column[begin:end].copy() for name, column in columns.items()})
        expected.append(compute_advantages(of_one, last, gamma, lambda_, use_gae, use_critic))
    add_advantages(columns, np.array(lengths), last_values, config)
    for name in ("advantages", "value_targets"):
        whole = np.concatenate([batch[name] for batch in expected])
        assert columns[name].dtype == whole.dtype
        np.testing.assert_allclose(columns[name], whole, rtol=1e-5, atol=1e-6)


def test_advantages_need_values():
    config = {"gamma": 0.9, "lambda": 1.0, "use_gae": True, "use_critic": False}
    with pytest.raises(BatchError, match="needs values"):
        add_advantages({"rewards": np.zeros(2)}, np.array([2]), np.zeros(1), config)
    with pytest.raises(BatchError, match="vf_preds"):
        add_advantages({"rewards": np.zeros(2)}, np.array([2]), np.zeros(1), config | {"use_critic": True})


@pytest.mark.parametrize("action_space", ACTION_SPACES, ids=str)
@pytest.mark.parametrize("options", [
    {},
    {"clip_param": 0.1, "vf_clip_param": 0.05, "vf_loss_coeff": 0.3, "entropy_coeff": 0.02, "kl_coeff": 0.7},
    {"use_kl_loss": False},
    {"use_critic": False, "use_gae": False},
])  # fmt: skip
def test_ppo_loss(action_space, options):
    config = PPOConfig().api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
    config = config.environment(observation_space=OBS_SPACE, action_space=action_space).framework("torch")
    theirs = RLlibPPOTorchPolicy(OBS_SPACE, action_space, config.training(**options).to_dict())
    module = fastmarl.RLModuleSpec(observation_space=OBS_SPACE, action_space=action_space).build()
    ours = PPOTorchPolicy(module, options)
    assert {name: theirs.config[name] for name in ours.config if name not in ("max_seq_len", "grad_clip")} == {
        name: value for name, value in ours.config.items() if name not in ("max_seq_len", "grad_clip")
    }
    torch.manual_seed(1)
    n = 64
    obs = torch.rand(n, 5)
    logits, _ = theirs.model({"obs": obs + 0.5})
    batch = {
        "obs": obs,
        "actions": theirs.dist_class(logits, theirs.model).sample(),
        "action_dist_inputs": logits.detach(),
        "advantages": torch.randn(n),
        "value_targets": torch.randn(n),
    }
    batch["action_logp"] = theirs.dist_class(batch["action_dist_inputs"], theirs.model).logp(batch["actions"])
    expected = theirs.loss(theirs.model, theirs.dist_class, SampleBatch(batch))
    ours.model.module = None  # their model acts for it
    model = _WithStats(theirs.model, ours.model.tower_stats)
    got = PPOTorchPolicy.loss(ours, model, ours.dist_class, SampleBatch(batch))
    torch.testing.assert_close(got, expected)
    names = {"total_loss": "total_loss", "policy_loss": "mean_policy_loss", "vf_loss": "mean_vf_loss",
             "entropy": "mean_entropy", "kl": "mean_kl_loss"}  # fmt: skip
    for name, of_rllib in names.items():
        torch.testing.assert_close(ours.model.tower_stats[name], theirs.model.tower_stats[of_rllib])
    for sampled_kl in (0.021, 0.015, 0.004, 0.5):
        assert ours.update_kl(sampled_kl) == theirs.update_kl(sampled_kl)


class _WithStats:
    """RLlib's model, with a place for statistics as ours has."""

    def __init__(self, model, tower_stats):
        self.model, self.tower_stats = model, tower_stats

    def __call__(self, batch):
        return self.model(batch)

    def value_function(self):
        return self.model.value_function()


class _Watched:
    """A worker, or a policy, that keeps the minibatches it is to learn from."""

    config = {"model": {"max_seq_len": 20}}  # noqa: RUF012

    def __init__(self):
        self.seen = []

    def is_recurrent(self):
        return False

    def learn_on_batch(self, batch):
        [(policy_id, columns)] = batch.policy_batches.items()
        self.seen.append((policy_id, {name: column.tolist() for name, column in columns.items()}))
        return {policy_id: {"learner_stats": {"mean": float(columns["advantages"].mean())}}}


@given(n=st.integers(1, 30), size=st.integers(0, 12), epochs=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=50)
def test_minibatches(n, size, epochs, seed):
    found = []
    for module in (rllib_sgd, sgd):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002, from which both draw
        worker, policy = _Watched(), _Watched()
        batch = SampleBatch({"obs": np.arange(n), "advantages": np.arange(n) ** 2 + 0.5})
        batches = MultiAgentBatch({"p": batch, "q": batch.copy()}, n)
        learn = worker
        if module is sgd:
            learn = lambda policy_id, one, to=worker: to.learn_on_batch(MultiAgentBatch({policy_id: one}, 1))[policy_id]  # noqa: E731
        info = module.do_minibatch_sgd(batches, {"p": policy, "q": policy}, learn, epochs, size, ["advantages"])
        means = {policy_id: of_one["learner_stats"]["mean"] for policy_id, of_one in info.items()}
        found.append((worker.seen, {policy_id: pytest.approx(mean, abs=1e-6) for policy_id, mean in means.items()}))
    (theirs, expected), (ours, got) = found
    assert ours == theirs
    assert {policy_id: value.expected for policy_id, value in got.items()} == expected


class _Recurrent(_Watched):
    def is_recurrent(self):
        return True

    config = {"max_seq_len": 4}  # noqa: RUF012


@given(lengths=st.lists(st.integers(1, 4), min_size=1, max_size=9), size=st.integers(4, 9))
def test_minibatches_have_complete_sequences(lengths, size):
    n = sum(lengths)
    batch = SampleBatch({"obs": np.arange(n), "advantages": np.ones(n), "seq_lens": lengths,
                         "state_in_0": np.arange(len(lengths))})  # fmt: skip
    pieces = list(sgd.minibatches(batch, size))
    starts = np.cumsum([0, *lengths])
    seen = []
    for piece in pieces:
        assert len(piece) == sum(piece["seq_lens"]) <= size
        rows = [row for first, length in zip(piece["state_in_0"], piece["seq_lens"], strict=True)
                for row in range(starts[first], starts[first] + length)]  # fmt: skip
        assert piece["obs"].tolist() == rows
        seen += rows
    assert sorted(seen) == list(range(n))
    with pytest.raises(BatchError, match="less than max_seq_len=4"):
        sgd.do_minibatch_sgd(batch, {"default_policy": _Recurrent()}, None, 1, 3, [])


# RLlib's parameters -> ours, of the same layers.
SHARED = {"_hidden_layers.0._model.0": "trunk.0", "_logits._model.0": "pi", "_value_branch._model.0": "vf"}
SEPARATE = {**SHARED, "_value_branch_separate.0._model.0": "vf_trunk.0"}
RECURRENT = {"_hidden_layers.0._model.0": "trunk.steps.0", "lstm": "trunk.lstm", "_logits_branch._model.0": "pi",
             "_value_branch._model.0": "vf"}  # fmt: skip
UNUSED = "_value_branch_separate"  # in RLlib's LSTM
KL, LEAST = {"kl_coeff": 0.7, "lr": 0.01}, {"kl_coeff": 0.0, "vf_loss_coeff": 0.0, "entropy_coeff": 0.05, "lr": 0.01}


def _twins(layers, of_rllib, of_ours, **both):
    """RLlib's worker and ours, whose networks have the same weights, and RLlib's batch of `Clock`."""
    faces = Theirs(), Ours()
    policies, length = both.pop("policies_to_train", None), both.pop("rollout_fragment_length", 10)
    model = {**PPOConfig().model, "fcnet_hiddens": [8], **of_rllib}
    theirs = faces[0].fresh(model=model, train_batch_size=64, policies_to_train=policies,
                            rollout_fragment_length=length, **both)  # fmt: skip
    ours = faces[1].fresh(model_config={"fcnet_hiddens": [8], **of_ours}, policy_config=both,
                          policies_to_train=policies)  # fmt: skip
    ours.set_weights({policy_id: _ours(of_one, layers) for policy_id, of_one in theirs.get_weights().items()})
    return theirs, ours


def _ours(weights, layers):
    kept = {name: array.copy() for name, array in weights.items() if not (layers is RECURRENT and UNUSED in name)}
    return {next(to + name[len(of) :] for of, to in layers.items() if name.startswith(of)): each for name, each in
            kept.items()}  # fmt: skip


def _assert_alike(one, other, where=""):
    assert isinstance(one, dict) == isinstance(other, dict), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name, value in one.items():
            _assert_alike(value, other[name], f"{where}/{name}")
    elif not where.endswith("allreduce_latency"):
        assert other == pytest.approx(one, rel=1e-3, abs=2e-5, nan_ok=True), where


def _assert_same_weights(theirs, ours, layers):
    for policy_id, of_one in ours.get_weights().items():
        for name, array in _ours(theirs.get_weights()[policy_id], layers).items():
            np.testing.assert_allclose(of_one[name], array, rtol=1e-3, atol=1e-4, err_msg=f"{policy_id} {name}")


def _copied(batch):
    """The batch for each of two workers, the second one's of our class."""
    return batch.copy(), from_rllib(batch.copy())


def _of_both(workers, batch, call):
    """Return the answers of both workers to `call(worker, batch)`."""
    return [call(worker, each) for worker, each in zip(workers, _copied(batch), strict=True)]


KINDS = {
    "shared": (SHARED, {"vf_share_layers": True}, {}, KL),
    "separate": (SEPARATE, {}, {"vf_share_layers": False}, {}),
    "LSTM": (RECURRENT, {"use_lstm": True, "lstm_cell_size": 4}, {"use_lstm": True, "lstm_cell_size": 4}, KL),
    "one learns": (SHARED, {"vf_share_layers": True}, {}, {"policies_to_train": ["p1"]}),
    "clipped": (SHARED, {"vf_share_layers": True}, {}, {"grad_clip": 0.5, "lr": 0.01}),
    "no losses": (SHARED, {"vf_share_layers": True}, {}, LEAST),
    "no KL loss": (SHARED, {"vf_share_layers": True}, {}, {"use_kl_loss": False, "entropy_coeff": 0.01}),
    "no critic": (SHARED, {"vf_share_layers": True}, {}, {"use_critic": False, "use_gae": False, "lr": 0.01}),
    "schedules": (SHARED, {"vf_share_layers": True}, {}, {"lr_schedule": [[0, 0.01], [20, 0.02]],
                                                          "entropy_coeff_schedule": [[10, 0.2], [30, 0.0]]}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_learning_has_rllibs_results(kind):
    """All keys, nested, with equal numbers, over updates that make policies and samplers differ."""
    layers, of_rllib, of_ours, both = KINDS[kind]
    theirs, ours = _twins(layers, of_rllib, of_ours, **both)
    with ours:
        batch = theirs.sample()
        for timestep in (0, 5, 15, 40):
            for worker in (theirs, ours):
                worker.set_global_vars({"timestep": timestep})
            _assert_alike(*_of_both((theirs, ours), batch, lambda worker, each: worker.learn_on_batch(each)))
            _assert_same_weights(theirs, ours, layers)
        _assert_alike(*_of_both((theirs, ours), batch, lambda worker, each: worker.compute_gradients(each)[1]))


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "of_rllib", "of_ours"), [KINDS["shared"][:3], KINDS["LSTM"][:3]], ids=str)
def test_minibatches_have_rllibs_results(layers, of_rllib, of_ours, monkeypatch):
    theirs, ours = _twins(layers, of_rllib, of_ours, rollout_fragment_length=60, **KL)
    with ours:
        batches = _copied(theirs.sample())
        for batch in batches:
            del batch.policy_batches["p1"]  # RLlib's order of policies is that of a set
        found = []
        for worker, batch in zip((theirs, ours), batches, strict=True):
            monkeypatch.setattr(worker, "sample", lambda batch=batch: batch)
            random.seed(1)
            np.random.seed(1)  # noqa: NPY002, from which both draw
            found.append(worker.sample_and_learn(60, 3, 20, ["advantages"]))
        assert found[0][1] == found[1][1]
        _assert_alike(found[0][0], found[1][0])
        _assert_same_weights(theirs, ours, layers)
