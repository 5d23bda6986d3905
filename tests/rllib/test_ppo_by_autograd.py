"""PPOTorchLearner's updates by autograd, and its processing of gradients, equal those of RLlib's learner."""

from itertools import product

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from support.exhaustive import further
from support.ppo_learners import (
    RECURRENT,
    assert_close,
    assert_same,
    computed_directly,
    learner_of,
    sampled,
    update,
    updated,
    weights_of,
)
from torch import nn

from fastmarl.rllib import PPOTorchLearner

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and Gymnasium's own

KINDS = {"exact": PPOTorchLearner, "fast": PPOTorchLearner.options(update="fast")}


def assert_alike(kind, options, want, got):
    if kind == "fast":
        assert_close(options, want, got)
    else:
        assert_same(want, got)


@pytest.fixture
def computed():
    with computed_directly() as found:
        yield found


class OwnLoss:
    """Logs sums, which would miss minibatches that are not heard."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        self.metrics.log_value((module_id, "n_rows"), len(batch), reduce="sum")
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


def put_own_parts(module):
    """Dropout draws random numbers, in RLlib's order."""
    module.pi = nn.Sequential(nn.Dropout(0.3), module.pi, Doubling())


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


CHANGES = (put_own_parts, hook_layer, hook_parameter, hook_backward, freeze, replace_method, normalise)


def by_turns(values):
    """Each value with one kind of learner, and as a further case with the other."""
    pairs = [(value, [*KINDS][i % 2]) for i, value in enumerate(values)]
    return [*pairs, *further((value, kind) for value in values for kind in KINDS if (value, kind) not in pairs)]


MIXINS = (OwnLoss, OwnGradients, OwnUpdate, NoGradients, *map(changed, CHANGES))


@pytest.mark.parametrize(("mixin", "kind"), by_turns(MIXINS), ids=lambda value: getattr(value, "__name__", None))
def test_customised_learners_are_equal_without_our_gradient(mixin, kind, computed):
    calls = sampled({})[:2]
    theirs, ours = (type("Own", (mixin, each), {}) for each in (RLlibLearner, KINDS[kind]))
    assert_same(updated(theirs, {}, calls), updated(ours, {}, calls))
    assert not computed


@pytest.mark.parametrize(
    ("options", "kind"),
    by_turns(
        [{"model": RECURRENT}, {"use_critic": False, "use_gae": False}, {"num_epochs": 1, "minibatch_size": None}]
    ),
)
def test_other_configs_are_equal(options, kind, computed):
    calls = sampled(options)[:2]
    assert_same(updated(RLlibLearner, options, calls), updated(KINDS[kind], options, calls))
    assert not computed


class OwnPostprocessing:
    def postprocess_gradients_for_module(self, *, module_id, config=None, module_gradients_dict):
        assert all(name.grad is gradient for name, gradient in module_gradients_dict.items())
        return {name: gradient * (1 + (gradient > 0)) for name, gradient in module_gradients_dict.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_ones_own_making_are_applied(kind, computed):
    calls = sampled({})[:2]
    theirs, ours = (type("Own", (OwnPostprocessing, each), {}) for each in (RLlibLearner, KINDS[kind]))
    assert_alike(kind, {}, updated(theirs, {}, calls), updated(ours, {}, calls))
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


COLUMNS = (Columns.OBS, Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS)
ROWS = [*product(COLUMNS, (False, True), (float("nan"), float("inf")), KINDS)]


@pytest.mark.parametrize(
    ("column", "is_masked", "bad", "kind"), [*ROWS[::3], *further(row for i, row in enumerate(ROWS) if i % 3)]
)
def test_rows_that_are_not_finite(column, is_masked, bad, kind, computed):
    calls = sampled({})[:1]
    want, got = (updated(poisoned(each, column, bad, is_masked), {}, calls) for each in (RLlibLearner, KINDS[kind]))
    assert_alike(kind, {}, want, got)
    assert True in computed
    assert False in computed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skips", [False, True])
def test_gradients_that_are_not_finite(skips, kind):
    def run(kind):
        learner, _ = learner_of(poisoned(kind, Columns.OBS, float("nan"), False), {})
        learner.config._is_frozen = False
        learner.config.torch_skip_nan_gradients = skips
        update(learner, sampled({})[0])
        return weights_of(learner)

    want, got = run(RLlibLearner), run(KINDS[kind])
    assert skips == any(np.isnan(each).any() for each in want.values())
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=1e-6 if kind == "fast" else 0)
