"""Derivatives written by hand against autograd: PPO's loss, layers, Adam's step."""

import numpy as np
import pytest
import torch
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical, TorchDiagGaussian
from torch import nn

from fastmarl.core.native._ppo import PPOLoss, tanh_
from fastmarl.rllib.learner import adam
from fastmarl.rllib.learner.dense import BACKWARDS, DenseStack, is_dense, layers_of

DEFAULTS = {"clip_param": 0.3, "vf_clip_param": 10.0, "vf_loss_coeff": 1.0, "entropy_coeff": 0.0, "kl_coeff": 0.2}
N_OBS = 2


class Minibatch:
    """Random rows, by column and packed."""

    def __init__(self, n, n_logits, n_actions, mask, spread=1.5):
        generator = torch.Generator().manual_seed(n)

        def draw(*shape):
            return spread * torch.randn(*shape, generator=generator)

        self.is_discrete = n_actions == 0
        self.logits, self.values = draw(n, n_logits), draw(n, 1)
        self.former = self.logits + 0.5 * draw(n, n_logits)
        kind = TorchCategorical if self.is_discrete else TorchDiagGaussian
        torch.manual_seed(0)
        former = kind.from_logits(self.former)
        self.actions = former.sample()
        self.logp, self.advantages, self.targets = former.logp(self.actions), draw(n), draw(n)
        self.mask = mask(n)
        columns = (self.actions, self.former, self.logp, self.advantages, self.targets, self.mask)
        self.rows = torch.cat([draw(n, N_OBS), *(each.reshape(n, -1).float() for each in columns)], 1)
        self.kind = kind

    def by_autograd(self, bound=None, **options):
        """Derivatives by logits and values."""
        logits, values = (each.clone().requires_grad_() for each in (self.logits, self.values))
        inputs = logits
        if bound is not None:
            means, scales = logits.chunk(2, -1)
            inputs = torch.cat((means, scales.clamp(-bound, bound)), -1)
        policy, former = self.kind.from_logits(inputs), self.kind.from_logits(self.former)
        ratio = torch.exp(policy.logp(self.actions) - self.logp)
        clip = options["clip_param"]
        gain = torch.min(self.advantages * ratio, self.advantages * ratio.clamp(1 - clip, 1 + clip))
        errors = torch.pow(values[:, 0] - self.targets, 2.0).clamp(0, options["vf_clip_param"])
        loss = -gain + options["vf_loss_coeff"] * errors - options["entropy_coeff"] * policy.entropy()
        if options["kl_coeff"] is not None:
            loss = loss + options["kl_coeff"] * former.kl(policy)
        (loss[self.mask].sum() / self.mask.sum()).backward()
        return logits.grad.numpy(), values.grad.numpy()

    def by_hand(self, **options):
        """The same, written over what was there."""
        found = [np.full(each.shape, np.nan, np.float32) for each in (self.logits, self.values)]
        loss = PPOLoss(**options)
        take = loss.categorical if self.is_discrete else loss.gaussian
        take(self.rows.numpy(), N_OBS, self.logits.numpy(), self.values.numpy(), *found)
        return found


def all_of(n):
    return torch.ones(n, dtype=torch.bool)


def some_of(n):
    return torch.arange(n) % 3 != 1


def none_of(n):
    return torch.zeros(n, dtype=torch.bool)


def assert_close(got, want):
    """Sums of some ten rounded terms (6e-8 of each), which may cancel; exp(x) multiplies the error of x by x."""
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6 * max(1e-6, np.abs(theirs).max()))


OPTIONS = [
    {},
    {"kl_coeff": None},
    {"kl_coeff": 1.7, "entropy_coeff": 0.1},
    {"clip_param": 0.02, "vf_clip_param": 0.5, "vf_loss_coeff": 0.3},
    {"vf_clip_param": None},
]


@pytest.mark.parametrize("mask", [all_of, some_of, none_of])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("n", "n_logits"), [(1, 2), (7, 1), (130, 5)])
def test_categorical_policies(n, n_logits, options, mask):
    minibatch, options = Minibatch(n, n_logits, 0, mask), {**DEFAULTS, **options}
    assert_close(minibatch.by_hand(**options), minibatch.by_autograd(**options))


@pytest.mark.parametrize("bound", [None, 0.7])
@pytest.mark.parametrize("mask", [all_of, some_of, none_of])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("n", "n_dims"), [(1, 1), (130, 3)])
def test_gaussian_policies(n, n_dims, options, mask, bound):
    minibatch = Minibatch(n, 2 * n_dims, n_dims, mask, spread=0.6)
    options = {**DEFAULTS, **options, "bound": bound}
    assert_close(minibatch.by_hand(**options), minibatch.by_autograd(**options))


def test_probabilities_of_zero():
    """RLlib's divergence is constant where one of the two probabilities is 0."""
    minibatch = Minibatch(12, 3, 0, all_of)
    minibatch.actions[:], minibatch.rows[:, N_OBS] = 0, 0
    minibatch.logits[:6, 1], minibatch.former[6:, 2] = -300.0, -300.0
    minibatch.rows[:, N_OBS + 1 : N_OBS + 4] = minibatch.former
    assert_close(minibatch.by_hand(**DEFAULTS), minibatch.by_autograd(**DEFAULTS))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_dims", [0, 2])
@pytest.mark.parametrize("is_masked", [False, True])
def test_what_is_not_finite_is_seen(n_dims, is_masked, bad):
    """Wherever autograd's derivatives are not finite, ours are not: RLlib's code is asked then."""
    names = ("logits", "values", "former", "logp", "advantages", "targets")
    for name in names:
        minibatch = Minibatch(3, 4, n_dims, all_of)
        minibatch.mask[1] = not is_masked
        column = getattr(minibatch, name)
        column[(1, *[0] * (column.ndim - 1))] = bad
        minibatch.rows = torch.cat(
            [minibatch.rows[:, :N_OBS], *(each.reshape(3, -1).float() for each in (
                minibatch.actions, minibatch.former, minibatch.logp, minibatch.advantages, minibatch.targets,
                minibatch.mask))], 1)  # fmt: skip
        want = minibatch.by_autograd(**DEFAULTS)
        if not all(np.isfinite(each).all() for each in want):
            got = minibatch.by_hand(**DEFAULTS)
            assert not all(np.isfinite(each).all() for each in got), name


@pytest.mark.parametrize("at", range(5))
def test_sizes_are_checked(at):
    arrays = [np.zeros(shape, np.float32) for shape in ((4, N_OBS + 8), (4, 3), (4, 1), (4, 3), (4, 1))]
    PPOLoss(**DEFAULTS).categorical(arrays[0], N_OBS, *arrays[1:])
    arrays[at] = np.zeros((4, 30), np.float32)
    with pytest.raises(ValueError, match="must"):
        PPOLoss(**DEFAULTS).categorical(arrays[0], N_OBS, *arrays[1:])
    arrays[at] = np.zeros((5, arrays[at].shape[1]), np.float32)
    with pytest.raises(ValueError, match="must"):
        PPOLoss(**DEFAULTS).categorical(arrays[0], N_OBS, *arrays[1:])


# Layers.


def test_tanh():
    x = torch.cat([torch.linspace(-15, 15, 3001), torch.logspace(-30, 0, 100), torch.tensor([torch.inf, -torch.inf])])
    y = x.clone().reshape(1, -1)
    tanh_(y.numpy())
    want = torch.tanh(x.double())
    assert ((y[0].double() - want).abs() <= 3e-7 * want.abs()).all()
    bad = np.full((1, 9), np.nan, np.float32)
    tanh_(bad)
    assert np.isnan(bad).all()
    tanh_(np.empty((0, 3), np.float32))


NETS = {
    "one layer": [nn.Linear(3, 4)],
    "no bias": [nn.Linear(3, 40, bias=False), nn.Tanh(), nn.Linear(40, 2, bias=False)],
    "no activation": [nn.Linear(5, 4), nn.Linear(4, 6)],
    **{kind.__name__: [nn.Linear(4, 40), kind(), nn.Linear(40, 7), kind(), nn.Linear(7, 2)] for kind in BACKWARDS},
    "own alpha": [nn.Linear(3, 4), nn.ELU(alpha=0.4), nn.Linear(4, 2)],
    "tanh of GELU": [nn.Linear(3, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 2)],
}


@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize("name", NETS)
def test_layers(name, n):
    net, generator = nn.Sequential(*NETS[name]), torch.Generator().manual_seed(n)
    assert is_dense(net)
    net.zero_grad()
    gradients = {weight: torch.full_like(weight, torch.nan) for weight in net.parameters()}
    inputs = torch.randn(n, net[0].in_features, generator=generator).requires_grad_()
    want = net(inputs)
    derivatives = torch.randn(want.shape, generator=generator)
    want.backward(derivatives)
    with torch.no_grad():
        layers = layers_of(net, n, gradients)
        for is_first in (False, True):
            stack = DenseStack(layers, is_first)
            np.testing.assert_allclose(stack.forward(inputs), want.detach(), rtol=1e-5, atol=1e-6)
            by_inputs = stack.backward(derivatives.clone())
            if not is_first:
                np.testing.assert_allclose(by_inputs, inputs.grad, rtol=1e-4, atol=1e-6)
            for weight, gradient in gradients.items():
                np.testing.assert_allclose(gradient, weight.grad, rtol=1e-4, atol=1e-5)
                gradient.fill_(torch.nan)


@pytest.mark.parametrize(
    "layers",
    [[], [nn.Tanh()], [nn.Linear(2, 3), nn.Tanh(), nn.Tanh()], [nn.Linear(2, 3), nn.LayerNorm(3)],
     [nn.Linear(2, 3), nn.Mish()], [nn.Linear(2, 3), nn.Dropout(0.1)]],
    ids=str,
)  # fmt: skip
def test_other_layers_are_left_to_torch(layers):
    assert not is_dense(nn.Sequential(*layers))


# Adam.


def test_adam_in_one_pass():
    shapes = [(), (1,), (0,), (7,), (33, 5), (256, 40)]
    ours, theirs = ([nn.Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    got, want = (torch.optim.Adam(each, lr=0.02, betas=(0.8, 0.95), eps=1e-4) for each in (ours, theirs))
    generator, fused = torch.Generator().manual_seed(0), None
    for k in range(8):
        got.param_groups[0]["lr"] = want.param_groups[0]["lr"] = 0.02 / (k + 1)
        for one, other in zip(ours, theirs, strict=True):
            gradient = torch.randn(one.shape, generator=generator) * 10.0 ** (k - 4)
            other.grad = gradient
            one.grad = gradient.clone() if one.grad is None else one.grad.copy_(gradient)
        want.step()
        if fused is None:
            assert not adam.can_fuse(got)  # no step was made, there are no moments
            got.step()
            fused = adam.FusedAdam(got)
        else:
            assert adam.can_fuse(got)
            version = ours[-1]._version
            fused.step()
            assert ours[-1]._version > version
    for one, other in zip(ours, theirs, strict=True):
        assert got.state[one]["step"] == want.state[other]["step"] == 8
        for mine, yours in ((one, other), *((got.state[one][name], want.state[other][name])
                                            for name in ("exp_avg", "exp_avg_sq"))):  # fmt: skip
            largest = float(yours.detach().abs().max()) if len(yours.reshape(-1)) else 0  # terms of a mean may cancel
            np.testing.assert_allclose(mine.detach(), yours.detach(), rtol=2e-6, atol=1e-7 * largest)


@pytest.mark.parametrize("options", [{"weight_decay": 0.1}, {"amsgrad": True}, {"maximize": True}], ids=str)
def test_other_kinds_of_adam_are_left_to_torch(options):
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(3))], **options)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step()
    assert not adam.can_fuse(optimizer)
