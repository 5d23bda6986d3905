"""The derivatives of PPO's loss are bit-identical to autograd through RLlib's own loss."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical
from ray.rllib.evaluation.postprocessing import Postprocessing

from fastmarl.core.native._ppo_exact import Derivatives
from fastmarl.rllib.learner.minibatches import MinibatchRows
from fastmarl.rllib.learner.module_gradient import CategoricalLoss

pytestmark = pytest.mark.filterwarnings("ignore:var")  # of one value, which RLlib logs

DEFAULTS = {"clip_param": 0.3, "vf_clip_param": 10.0, "vf_loss_coeff": 1.0, "entropy_coeff": 0.0, "kl_coeff": 0.2}
OPTIONS = [
    {},
    {"kl_coeff": None},
    {"kl_coeff": None, "entropy_coeff": 0.3},
    {"kl_coeff": 1.7, "entropy_coeff": 0.1, "vf_loss_coeff": 0.3},
    {"clip_param": 0.02, "vf_clip_param": 0.5},
    {"vf_clip_param": None, "entropy_coeff": 0.01},
]


def drawn(n, k, spread, drift, seed=0):
    """A minibatch, and the logits and values of a policy that has drifted from the one that acted."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    logits, values = spread * draw(n, k), 3 * draw(n, 1)
    former = logits + drift * draw(n, k)
    policy = TorchCategorical.from_logits(former)
    actions = torch.multinomial(torch.softmax(former, -1), 1, generator=generator)[:, 0]
    columns = {
        Columns.ACTIONS: actions,
        Columns.ACTION_DIST_INPUTS: former,
        Columns.ACTION_LOGP: policy.logp(actions),
        Postprocessing.ADVANTAGES: draw(n) * (draw(n) > -1),
        Postprocessing.VALUE_TARGETS: draw(n),
        Columns.LOSS_MASK: draw(n) > -0.7,
    }
    return MinibatchRows(columns), logits, values


def by_autograd(minibatch, logits, values, *, kl_coeff, entropy_coeff, **options):
    logits, values = (each.clone().requires_grad_() for each in (logits, values))
    module = SimpleNamespace(
        get_train_action_dist_cls=lambda: TorchCategorical,
        get_exploration_action_dist_cls=lambda: TorchCategorical,
        compute_values=lambda batch, embeddings: values.squeeze(-1),
    )
    learner = SimpleNamespace(
        module={"p": SimpleNamespace(unwrapped=lambda: module)},
        entropy_coeff_schedulers_per_module={"p": SimpleNamespace(get_current_value=lambda: entropy_coeff)},
        curr_kl_coeffs_per_module={"p": torch.tensor(kl_coeff or 0.0)},
        metrics=SimpleNamespace(log_dict=lambda *args, **kwargs: None),
    )
    loss = RLlibLearner.compute_loss_for_module(
        learner,
        module_id="p",
        config=SimpleNamespace(use_critic=True, use_kl_loss=kl_coeff is not None, **options),
        batch=minibatch,
        fwd_out={Columns.ACTION_DIST_INPUTS: logits},
    )
    loss.backward()
    return logits.grad, values.grad


def by_hand(minibatch, logits, values, **options):
    found = [torch.full_like(each, torch.nan) for each in (logits, values)]
    with torch.no_grad():
        CategoricalLoss(*logits.shape, options).derive(minibatch, logits, values, *found)
    return found


def assert_same_bits(minibatch, logits, values, options):
    want = by_autograd(minibatch, logits, values, **options)
    for ours, theirs in zip(by_hand(minibatch, logits, values, **options), want, strict=True):
        assert ours.isfinite().all()
        assert torch.equal(ours, theirs)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("spread", "drift"), [(0.01, 0), (1, 0.1), (1, 1), (10, 5), (200, 1), (200, 100)])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 2), (7, 3), (64, 5), (128, 2), (129, 17), (33, 40)])
def test_bits(n, k, spread, drift, options):
    assert_same_bits(*drawn(n, k, spread, drift), {**DEFAULTS, **options})


@pytest.mark.parametrize("mask", [torch.zeros(9), torch.ones(9), torch.arange(9) == 4], ids=["none", "all", "one"])
def test_masks(mask):
    minibatch, logits, values = drawn(9, 3, 1, 1)
    minibatch[Columns.LOSS_MASK] = mask.bool()
    assert_same_bits(minibatch, logits, values, DEFAULTS)


@pytest.mark.parametrize("n", range(1, 60))
def test_means_of_any_number_of_rows(n):
    minibatch, logits, values = drawn(n, 3, 1, 1)
    minibatch[Columns.LOSS_MASK][:] = True
    options = {**DEFAULTS, "entropy_coeff": 0.03, "vf_loss_coeff": 0.7, "kl_coeff": 0.3}
    assert_same_bits(minibatch, logits, values, options)


@pytest.mark.parametrize("is_larger", [True, False])
def test_ratios_at_the_very_clip(is_larger):
    minibatch, logits, values = drawn(40, 2, 1, 0.1)
    logp = TorchCategorical.from_logits(logits).logp(minibatch[Columns.ACTIONS])
    ratios = torch.exp(logp - minibatch[Columns.ACTION_LOGP]).tolist()
    for ratio in ratios:
        if (ratio > 1) == is_larger:
            assert_same_bits(minibatch, logits, values, {**DEFAULTS, "clip_param": abs(ratio - 1)})


def test_errors_at_the_very_clip():
    minibatch, logits, values = drawn(40, 2, 1, 0.1)
    values[:, 0] = minibatch[Postprocessing.VALUE_TARGETS] + torch.tensor([0.0, 2.0, -2.0, 2.0000002]).repeat(10)
    assert_same_bits(minibatch, logits, values, {**DEFAULTS, "vf_clip_param": 4.0})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_actions_of_any_integer(dtype):
    minibatch, logits, values = drawn(9, 3, 1, 1)
    minibatch[Columns.ACTIONS] = minibatch[Columns.ACTIONS].to(dtype)
    assert_same_bits(minibatch, logits, values, DEFAULTS)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("is_masked", [False, True])
def test_values_that_are_not_finite_are_noticed(is_masked, bad):
    """Wherever autograd's derivatives are not finite, ours are not: RLlib's code is asked then."""
    names = (
        *(Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP, Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS),
        *("logits", "values"),
    )
    for name in names:
        minibatch, logits, values = drawn(3, 4, 1, 1)
        minibatch[Columns.LOSS_MASK] = torch.tensor([True, not is_masked, True])
        column = {"logits": logits, "values": values, **minibatch}[name]
        column[(1, *[0] * (column.ndim - 1))] = bad
        for ours, theirs in zip(
            by_hand(minibatch, logits, values, **DEFAULTS),
            by_autograd(minibatch, logits, values, **DEFAULTS),
            strict=True,
        ):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=name)


def arrays_of(n, k):
    wide, rows = np.zeros((n, k), np.float32), np.zeros(n, np.float32)
    flags, column = np.ones(n, np.uint8), np.zeros((n, 1), np.float32)
    first = {
        **dict.fromkeys(("logarithms", "probabilities", "by_probabilities", "by_logarithms"), wide),
        **dict.fromkeys(("ratios", "advantages", "targets", "by_logp"), rows),
        **dict.fromkeys(("values", "by_values"), column),
        "counts": flags,
    }
    second = {
        **dict.fromkeys(("probabilities", "former", "by_logarithms", "by_softmax", "derivatives", "negative"), wide),
        **{"actions": np.zeros(n, np.int64), "counts": flags, "by_logp": rows},
    }
    return first, second


def test_sizes_are_checked():
    derivatives = Derivatives(**DEFAULTS)
    kernels = derivatives.by_ratios_and_probabilities, derivatives.by_normalized_logits
    for kernel, arrays in zip(kernels, arrays_of(4, 3), strict=True):
        kernel(**arrays)
        for name, array in arrays.items():
            larger = name in ("ratios", "actions")  # by which the others are measured
            shape = (5 if larger else 3, *array.shape[1:])
            with pytest.raises(ValueError, match="arrays must"):
                kernel(**{**arrays, name: np.zeros(shape, array.dtype)})
