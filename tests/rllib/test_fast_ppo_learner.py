"""PPOTorchLearner.options(update="fast") against RLlib's learner: equal but for rounding, or equal."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from ray import cloudpickle
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentPendulum
from support.ppo_learners import (
    RECURRENT,
    assert_same,
    assert_same_state,
    by_one,
    learner_of,
    sampled,
    update,
    updated,
)
from torch import nn

from fastmarl.errors import ConfigError
from fastmarl.rllib import PPOTorchLearner
from fastmarl.rllib.learning import ppo
from fastmarl.rllib.learning.fast_update import FastUpdate

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own

Fast = PPOTorchLearner.options(update="fast")

CASES = {
    "plain": {},
    "own layers for values": {"model": {"vf_share_layers": False}},
    "ReLU, three layers": {"model": {"fcnet_hiddens": [40, 9, 5], "fcnet_activation": "relu"}},
    "SiLU in heads": {"model": {"head_fcnet_hiddens": [6], "head_fcnet_activation": "silu"}},
    "ELU": {"model": {"fcnet_activation": "elu", "vf_share_layers": False}},
    "GELU": {"model": {"fcnet_activation": "GELU"}},
    "linear": {"model": {"fcnet_activation": "linear"}},
    "not shuffled": {"shuffle_batch_per_epoch": False},
    "minibatches larger than the batch": {"minibatch_size": 500},
    "whole batches": {"minibatch_size": None},
    "one module for all": {"to_train": ["p0"], "mapping": by_one},
    "one of two is trained": {"to_train": ["p1"]},
    "no KL": {"use_kl_loss": False},
    "much KL, narrow clips": {"kl_coeff": 3.0, "clip_param": 0.01, "vf_clip_param": 0.5, "vf_loss_coeff": 0.1},
    "entropy schedule": {"entropy_coeff": [[0, 0.1], [500, 0.0]]},
    "learning rate schedule": {"lr": [[0, 1e-2], [500, 1e-4]]},
    "clipped by value": {"grad_clip": 0.01, "grad_clip_by": "value"},
    "clipped by norm": {"grad_clip": 0.01, "grad_clip_by": "norm"},
    "clipped by global norm": {"grad_clip": 0.01, "grad_clip_by": "global_norm"},
    "logged gradients": {"log_gradients": True},
    "Box actions": {"env": MultiAgentPendulum},
    "Box actions, free scales": {"env": MultiAgentPendulum, "model": {"free_log_std": True, "vf_share_layers": False}},
    "Box actions, narrow scales": {"env": MultiAgentPendulum, "model": {"log_std_clip_param": 0.02}, "lr": 1e-2},
    "Box actions, narrow free scales": {
        "env": MultiAgentPendulum,
        "model": {"log_std_clip_param": 0.01, "free_log_std": True},
        "lr": 1e-2,
    },
}


def weights_of(learner):
    state = learner.get_state(components="rl_module")["rl_module"]
    return {(name, part): np.asarray(values) for name in state for part, values in state[name].items()}


def assert_close_weights(options, theirs, ours):
    """Equal but for a thousandth of what weights have moved.

    Rounded gradients differ by some 1e-6 of themselves, and Adam divides by their size: where little but rounding is
    left of a gradient, its weight moves as far as others.
    """
    begin = weights_of(learner_of(RLlibLearner, options)[0])
    want, got = weights_of(theirs), weights_of(ours)
    moved = max(np.abs(want[name] - begin[name]).max() for name in want)
    assert moved > 0
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=1e-3 * moved, err_msg=str(name))


def assert_close_optimizers(theirs, ours):
    """Adam hides a factor that is wrong; its moments and the last gradients tell."""
    for one, other in zip(theirs._params.values(), ours._params.values(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            assert_close_tensors(other.grad, one.grad)
    want, got = theirs.get_state(components="optimizer"), ours.get_state(components="optimizer")
    for name, state in want["optimizer"].items():
        assert got["optimizer"][name]["state"]["param_groups"] == state["state"]["param_groups"]
        for number, moments in state["state"]["state"].items():
            found = got["optimizer"][name]["state"]["state"][number]
            assert found.keys() == moments.keys()
            assert found["step"] == moments["step"]
            for key in ("exp_avg", "exp_avg_sq"):
                assert_close_tensors(found[key], moments[key])


def assert_close_tensors(got, want):
    want = np.asarray(want)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-3, atol=1e-4 * np.abs(want).max(initial=0))


def assert_close(options, want, got):
    (theirs, their_results, their_draws), (ours, our_results, our_draws) = want, got
    assert our_draws == their_draws
    assert_close_weights(options, theirs, ours)
    assert_close_optimizers(theirs, ours)
    for before, now in zip(their_results, our_results, strict=True):
        assert before.keys() == now.keys()
        for path, (kind, value) in before.items():
            assert now[path][0] is kind
            np.testing.assert_allclose(now[path][1], value, rtol=5e-4, atol=2e-6, err_msg=str(path))


@pytest.fixture
def computed(monkeypatch):
    """Minibatches whose gradients were computed without autograd: whether they were finite."""
    compute, found = FastUpdate.compute, []

    def counted(*arguments):
        found.append(compute(*arguments))
        return found[-1]

    monkeypatch.setattr(FastUpdate, "compute", counted)
    return found


@pytest.mark.parametrize("name", CASES)
def test_updates_are_close(name, computed):
    options = CASES[name]
    calls = sampled(options)
    want = updated(RLlibLearner, options, calls)
    assert not computed
    assert_close(options, want, updated(Fast, options, calls))
    assert len(computed) >= len(calls)
    assert all(computed)


# What is left to RLlib's way.


class OwnLoss:
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        return 0.5 * loss


class OwnGradients:
    def compute_gradients(self, loss_per_module, **kwargs):
        return {name: 2 * each for name, each in super().compute_gradients(loss_per_module, **kwargs).items()}


class OwnUpdate:
    def _uncompiled_update(self, batch, **kwargs):
        batch["p0"][Postprocessing.ADVANTAGES] *= 0.5
        return super()._uncompiled_update(batch, **kwargs)


class NoGradients:
    def update(self, **kwargs):
        with torch.no_grad():
            return super().update(**kwargs)


def changed(change):
    """A learner whose module `p0` is changed when it is built."""

    class Changed:
        def build(self):
            super().build()
            change(self.module["p0"])

    Changed.__name__ = change.__name__
    return Changed


class Doubling(nn.Module):
    def forward(self, inputs):
        return 2 * inputs


def put_own_part(module):
    module.pi = nn.Sequential(module.pi, Doubling())


def hook_layer(module):
    module.vf.net.mlp[0].register_forward_hook(lambda layer, inputs, outputs: 0.5 * outputs)


def hook_parameter(module):
    next(module.parameters()).register_hook(lambda gradient: 2 * gradient)


def hook_backward(module):
    module.encoder.encoder.net.mlp[0].register_full_backward_hook(lambda layer, by_inputs, by_outputs: None)


def freeze(module):
    module.encoder.encoder.net.mlp[0].bias.requires_grad_(False)


def replace_method(module):
    values = module.compute_values
    module.compute_values = lambda batch, embeddings=None: 0.5 * values(batch, embeddings)


def normalise(module):
    module.encoder.encoder.net.mlp.append(nn.LayerNorm(8))


CHANGES = (put_own_part, hook_layer, hook_parameter, hook_backward, freeze, replace_method, normalise)
MIXINS = (OwnLoss, OwnGradients, OwnUpdate, NoGradients, *map(changed, CHANGES))


@pytest.mark.parametrize("mixin", MIXINS, ids=lambda mixin: mixin.__name__)
def test_what_is_not_known_is_equal(mixin, computed):
    calls = sampled({})[:2]
    theirs, ours = (type("Own", (mixin, kind), {}) for kind in (RLlibLearner, Fast))
    assert_same(updated(theirs, {}, calls), updated(ours, {}, calls))
    assert not computed


@pytest.mark.parametrize(
    "options",
    [{"model": RECURRENT}, {"use_critic": False, "use_gae": False}, {"num_epochs": 1, "minibatch_size": None}],
    ids=["LSTM", "no critic", "one batch"],
)
def test_other_configs_are_equal(options, computed):
    calls = sampled(options)[:2]
    assert_same(updated(RLlibLearner, options, calls), updated(Fast, options, calls))
    assert not computed


class OwnPostprocessing:
    def postprocess_gradients_for_module(self, *, module_id, config=None, module_gradients_dict):
        assert all(name.grad is gradient for name, gradient in module_gradients_dict.items())
        return {name: gradient * (1 + (gradient > 0)) for name, gradient in module_gradients_dict.items()}


def test_gradients_of_ones_own_making_are_applied(computed):
    calls = sampled({})[:2]
    theirs, ours = (type("Own", (OwnPostprocessing, kind), {}) for kind in (RLlibLearner, Fast))
    assert_close({}, updated(theirs, {}, calls), updated(ours, {}, calls))
    assert all(computed)
    assert computed


# Numbers that are not finite.


def poisoned(kind, column, bad, is_masked):
    """A learner that gets train batches with one bad number."""

    class Poisoned(kind):
        def _make_batch_if_necessary(self, training_data):
            batch = super()._make_batch_if_necessary(training_data)
            rows = batch["p0"]
            at = int(torch.nonzero(rows[Columns.LOSS_MASK] != is_masked)[2, 0])
            rows[column] = rows[column].clone()
            rows[column][at] = bad
            return batch

    return Poisoned


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("column", [Columns.OBS, Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS])
def test_rows_that_are_not_finite(column, is_masked, bad, computed):
    calls, options = sampled({})[:1], {}
    want, got = (updated(poisoned(kind, column, bad, is_masked), options, calls) for kind in (RLlibLearner, Fast))
    assert_close(options, want, got)
    assert True in computed
    assert False in computed


@pytest.mark.parametrize("skips", [False, True])
def test_gradients_that_are_not_finite(skips):
    def run(kind):
        learner, _ = learner_of(poisoned(kind, Columns.OBS, float("nan"), False), {})
        learner.config._is_frozen = False
        learner.config.torch_skip_nan_gradients = skips
        update(learner, sampled({})[0])
        return weights_of(learner)

    want, got = run(RLlibLearner), run(Fast)
    assert skips == any(np.isnan(each).any() for each in want.values())
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=1e-6)


# States.


def test_states_go_from_one_to_the_other():
    calls = sampled({})
    for source in (RLlibLearner, Fast):
        state = updated(source, {}, calls[:1])[0].get_state()
        theirs, ours = (learner_of(kind, {})[0] for kind in (RLlibLearner, Fast))
        for learner in (theirs, ours):
            learner.set_state(copy.deepcopy(state))
            update(learner, calls[1])
        assert_close_weights({}, theirs, ours)
        assert_close_optimizers(theirs, ours)


def test_a_checkpoint_midway(tmp_path):
    calls = sampled({})
    learner = updated(Fast, {}, calls[:1])[0]
    learner.save_to_path(tmp_path)
    restored, _ = learner_of(Fast, {})
    update(restored, calls[2])  # so that it has steps and moments of its own
    restored.restore_from_path(tmp_path)
    assert_same_state(learner, restored)
    for each in (learner, restored):
        update(each, calls[1])
    assert_same_state(learner, restored)


def test_what_is_changed_between_updates_is_seen(computed):
    def run(kind):
        learner, _ = learner_of(kind, {})
        first, second, third = sampled({})
        update(learner, first)
        (optimizer,) = (each for _, each in learner.get_optimizers_for_module("p0"))
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        optimizer.param_groups[0]["eps"] = 1e-3
        for parameter in learner.module["p1"].parameters():
            parameter.data = 0.9 * parameter.data
        update(learner, second)
        layer = learner.module["p0"].vf.net.mlp[0]
        layer.weight = nn.Parameter(0.9 * layer.weight.detach())  # of which the optimizer does not know
        n_computed = len(computed)
        update(learner, third)
        assert len(computed) == n_computed
        return learner

    theirs, ours = run(RLlibLearner), run(Fast)
    assert_close_weights({}, theirs, ours)
    assert computed


def test_one_batch_after_minibatches(computed):
    def run(kind):
        learner, _ = learner_of(kind, {})
        first, second, _ = sampled({})
        update(learner, first)
        learner.update(episodes=second, num_epochs=1, minibatch_size=None)
        return learner

    theirs, ours = run(RLlibLearner), run(Fast)
    assert_close_weights({}, theirs, ours)
    assert computed


def test_an_update_that_failed_leaves_nothing(computed):
    learner, _ = learner_of(Fast, {})
    learner.get_optimizer = lambda *arguments: 1 / 0
    learner.apply_gradients = lambda gradients: 1 / 0
    with pytest.raises(ZeroDivisionError):
        update(learner, sampled({})[0])
    del learner.apply_gradients, learner.get_optimizer
    other, _ = learner_of(Fast, {})
    for each in (learner, other):
        each._weights_seq_no = 0
        update(each, sampled({})[0])
    assert_same_state(other, learner)


# Options.


def test_options():
    assert (Fast.update_mode, PPOTorchLearner.update_mode) == ("fast", "exact")
    assert PPOTorchLearner.options(update="fast") is Fast
    assert Fast.options().update_mode == "exact"
    assert Fast.options().options(update="fast") is Fast
    with pytest.raises(ValueError, match=r"update must be one of \['exact', 'fast'\], got 'quick'") as caught:
        PPOTorchLearner.options(update="quick")
    assert caught.type is ConfigError
    for name in ("PPOTorchLearner__slow", "PPOTorchLearner__", "x"):
        with pytest.raises(AttributeError, match=name):
            getattr(ppo, name)


class OwnLearner(PPOTorchLearner):
    pass


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_classes_with_options_pickle_by_import(dumps):
    assert pickle.loads(dumps(Fast)) is Fast
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).update_mode)"
    answer = subprocess.run(
        [sys.executable, "-c", code], input=dumps(Fast), capture_output=True, timeout=300, check=True
    )
    assert answer.stdout.split() == [b"fast"]


def test_learners_of_ones_own_are_sent_by_value():
    cls = OwnLearner.options(update="fast")
    assert cls.options().options(update="fast") is cls
    assert issubclass(type("Own", (Fast,), {}).options(), Fast)
    sent = cloudpickle.loads(cloudpickle.dumps(cls))
    assert issubclass(sent, OwnLearner)
    assert sent.update_mode == "fast"
