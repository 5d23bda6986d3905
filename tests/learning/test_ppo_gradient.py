"""The compiled gradient of PPO's loss against autograd in float64: random nets, policies, losses and rows."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence

from fastmarl.core.native._ppo import SUMS, VARIANTS, PPOGradient
from fastmarl.core.nets.dense_layers import OBSERVATIONS, DenseLayers, NotDenseError
from fastmarl.learning.dense_nets import DenseNet, gradient_of, needed_layers, packed_rows

LEAST = torch.finfo(torch.float32).min
ACTIVATIONS = [nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, lambda: nn.ELU(0.4), None]
WIDTHS = [1, 3, 5, 16, 17, 33, 64, 70, 200]
CASES = 40


class Case:
    """A random net, loss and minibatch."""

    def __init__(self, seed, *, kind=None, n=None):
        self.random = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.kind = kind or self.draw(["categorical", "choices", "gaussian", "free gaussian"])
        self.is_gaussian = "gaussian" in self.kind
        self.n_rows, self.n = 700, n or self.draw([1, 15, 16, 100, 500])
        self.sizes = {"categorical": [self.draw([1, 2, 5, 40])], "choices": [3, 1, 4]}.get(self.kind)
        self.n_dims = self.draw([1, 3, 20])
        n_out = sum(self.sizes) if self.sizes else self.n_dims * (1 if self.kind == "free gaussian" else 2)
        self.n_logits = 2 * self.n_dims if self.is_gaussian else n_out
        self.make_net(n_out)
        self.make_rows()
        self.options = {
            "clip": self.draw([0.02, 0.2]),
            "value_coeff": self.draw([0.5, 1.0]),
            "entropy_coeff": self.draw([0.0, 0.1]),
            "value_clip": self.draw([None, 0.5]),
            "kl_coeff": 0.0 if self.former is None else 0.7,
        }

    def draw(self, options):
        return options[self.random.integers(len(options))]

    def sequence(self, n_in, n_out=None):
        layers = []
        for _ in range(self.draw([0, 1, 2])):
            width, activation = self.draw(WIDTHS), self.draw(ACTIVATIONS)
            layers += [nn.Linear(n_in, width, bias=self.draw([True, True, False])), activation and activation()]
            n_in = width
        layers += [nn.Linear(n_in, n_out or self.draw(WIDTHS))]
        return nn.Sequential(*filter(None, layers))

    def make_net(self, n_out):
        self.n_obs = self.draw([1, 7, 18, 130])
        self.trunk = self.sequence(self.n_obs)
        self.is_shared = self.draw([True, False])
        self.vf_trunk = self.trunk if self.is_shared else self.sequence(self.n_obs)
        self.pi, self.vf = (
            self.sequence(self.trunk[-1].out_features, n_out),
            self.sequence(self.vf_trunk[-1].out_features, 1),
        )
        self.log_std = nn.Parameter(0.3 * torch.randn(n_out)) if self.kind == "free gaussian" else None
        self.bound = self.draw([None, 0.5]) if self.is_gaussian else None
        parts = nn.ModuleList([self.trunk, self.vf_trunk, self.pi, self.vf])
        self.parameters = [*parts.parameters(), *([] if self.log_std is None else [self.log_std])]

    def make_rows(self):
        n = self.n_rows
        self.obs = torch.randn(n, self.n_obs)
        with torch.no_grad():
            logits = self.outputs(torch.float32)[0].float()
        self.action_mask = None
        if not self.is_gaussian and self.draw([True, False]):
            self.action_mask = torch.rand(n, self.n_logits) < 0.6
            first = torch.tensor([sum(self.sizes[:k]) for k in range(len(self.sizes))])
            self.action_mask[:, first] = True  # one of each choice
        if self.is_gaussian:
            self.actions = logits[:, : self.n_dims] + torch.randn(n, self.n_dims)
        else:
            self.actions = torch.stack([torch.randint(0, size, (n,)) for size in self.sizes], 1)
            if self.action_mask is not None:
                self.actions[~self.action_mask.gather(1, self.actions + first)] = 0
        self.former = logits + 0.2 * torch.randn(n, self.n_logits) if self.draw([True, False]) else None
        if self.action_mask is not None and self.former is not None:
            self.former = self.former.masked_fill(~self.action_mask, LEAST)
        self.loss_mask = torch.rand(n) < 0.7 if self.draw([True, False]) else None
        with torch.no_grad():
            self.logp = (self.policy(torch.float32)[0] + 0.2 * torch.randn(n)).float()
        self.advantages, self.targets = torch.randn(n), 5 + torch.randn(n)
        self.order = torch.randperm(n)[: self.n]

    def outputs(self, dtype):
        def run(sequence, x):
            for layer in sequence:
                if isinstance(layer, nn.Linear):
                    x = nn.functional.linear(
                        x, layer.weight.to(dtype), None if layer.bias is None else layer.bias.to(dtype)
                    )
                else:
                    x = layer(x)
            return x

        features = run(self.trunk, self.obs.to(dtype))
        value_features = features if self.is_shared else run(self.vf_trunk, self.obs.to(dtype))
        logits = run(self.pi, features)
        if self.log_std is not None:
            logits = torch.cat([logits, self.log_std.to(dtype).expand_as(logits)], -1)
        return logits, run(self.vf, value_features)[:, 0]

    def policy(self, dtype):
        """(log-probabilities, entropies, KL of the former policy to this one, values)."""
        logits, values = self.outputs(dtype)
        former = logits if self.former is None else self.former.to(dtype)
        if self.is_gaussian:
            (mean, log_std), (former_mean, former_log_std) = logits.chunk(2, -1), former.chunk(2, -1)
            if self.bound is not None:
                log_std = log_std.clamp(-self.bound, self.bound)
            now, before = (
                Normal(m, s.exp(), validate_args=False) for m, s in ((mean, log_std), (former_mean, former_log_std))
            )
            kl = kl_divergence(before, now).sum(-1)
            return now.log_prob(self.actions.to(dtype)).sum(-1), now.entropy().sum(-1), kl, values
        if self.action_mask is not None:
            logits = logits.masked_fill(~self.action_mask, LEAST)
        parts = zip(logits.split(self.sizes, -1), former.split(self.sizes, -1), self.actions.T, strict=True)
        logp = entropy = kl = 0
        for part, former_part, action in parts:
            # Categorical by itself gives each of several least logits the log-probability 0.
            normalized = (each.log_softmax(-1) for each in (part, former_part))
            now, before = (Categorical(logits=each, validate_args=False) for each in normalized)
            logp, entropy = logp + now.log_prob(action), entropy + now.entropy()
            kl = kl + kl_divergence(before, now)
        return logp, entropy, kl, values

    def by_autograd(self, dtype=torch.float64):
        """Return gradients in the parameters' order, and sums by name."""
        for each in self.parameters:
            each.grad = None
        logp, entropy, kl, values = self.policy(dtype)
        counts = torch.ones(self.n_rows, dtype=torch.bool) if self.loss_mask is None else self.loss_mask
        ratio = (logp - self.logp).exp()
        clip, o = self.options["clip"], self.options
        surrogate = torch.min(ratio * self.advantages, ratio.clamp(1 - clip, 1 + clip) * self.advantages)
        error = values - self.targets
        value_loss = error.square().clamp(max=o["value_clip"] or math.inf)
        loss = o["value_coeff"] * value_loss - surrogate - o["entropy_coeff"] * entropy
        if self.former is not None:
            loss = loss + o["kl_coeff"] * kl
        chosen = self.order[counts[self.order]]
        (loss[chosen].sum() / max(1, len(chosen))).backward()
        terms = {
            "count": counts.double(), "surrogate": surrogate, "vf_loss": value_loss, "entropy": entropy,
            "kl": ratio - 1 - ratio.log(), "clipped": ((ratio - 1).abs() > clip).double(), "error": error,
            "squared_error": error.square(), "target": self.targets, "squared_target": self.targets.double().square(),
        }  # fmt: skip
        terms["former_kl"] = torch.zeros(self.n_rows) if self.former is None else kl
        sums = {name: float(terms[name][chosen].detach().sum()) for name in SUMS}
        return [torch.zeros_like(each) if each.grad is None else each.grad for each in self.parameters], sums

    def compiled(self, gradients, variant=None):
        layers = DenseLayers(self.n_obs)
        features = layers.add([*self.trunk])
        logits = layers.add([*self.pi], features)
        values = layers.add([*self.vf], features if self.is_shared else layers.add([*self.vf_trunk]))
        net = DenseNet(self.n_obs, layers.layers, logits, values, self.sizes, self.log_std, self.bound)
        return gradient_of(net, gradients, has_mask=self.action_mask is not None, has_former=self.former is not None,
                           variant=variant)  # fmt: skip

    def rows(self):
        return packed_rows(
            logp=self.logp, advantages=self.advantages, targets=self.targets, actions=self.actions,
            loss_mask=self.loss_mask, action_mask=self.action_mask, former_logits=self.former,
        ).numpy()  # fmt: skip

    def by_hand(self, variant):
        gradients = {each: torch.full_like(each, torch.nan) for each in self.parameters}
        net = self.compiled(gradients, variant)
        sums = net.compute(self.obs.numpy(), self.rows(), self.order.numpy(), **self.options)
        return [*gradients.values()], dict(zip(SUMS, sums.tolist(), strict=True))


def assert_close(got, want):
    for ours, theirs in zip(got, want, strict=True):
        size = max(1e-6, float(theirs.abs().max()))
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-4, atol=1e-4 * size)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(CASES))
def test_gradients_are_those_of_autograd(seed, variant):
    case = Case(seed)
    want, want_sums = case.by_autograd()
    got, sums = case.by_hand(variant)
    assert_close(got, want)
    assert sums == pytest.approx(want_sums, rel=2e-5, abs=2e-4)
    assert_close(case.by_hand(variant)[0], got)  # nothing is left of the call before


def test_blocks_of_rows_add_up():
    """More rows than any block has, some of them twice."""
    case = Case(1, kind="categorical", n=500)
    case.order = torch.randint(0, case.n_rows, (2000,))
    for variant in VARIANTS:
        assert_close(case.by_hand(variant)[0], case.by_autograd()[0])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_values_that_are_not_finite_are_noticed(variant, counts, kind, bad):
    """Wherever autograd's derivatives are not finite, ours are not: RLlib's code is asked then."""
    for name in ("logits", "logp", "advantages", "targets", "former"):
        case = Case(3, kind=kind, n=100)
        case.action_mask, case.loss_mask = None, torch.ones(case.n_rows, dtype=torch.bool)
        case.former = torch.zeros(case.n_rows, case.n_logits)
        case.options["kl_coeff"] = 0.7
        row = int(case.order[50])
        case.loss_mask[row] = counts
        if name == "logits":
            with torch.no_grad():
                case.pi[-1].weight[0, 0] = bad
        else:
            column = getattr(case, name)
            column[(row, *[0] * (column.dim() - 1))] = bad
        want, _ = case.by_autograd()
        if not all(torch.isfinite(each).all() for each in want):
            assert not all(torch.isfinite(each).all() for each in case.by_hand(variant)[0]), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_probabilities_of_zero(variant):
    """In float32, although float64 still represents both; the divergence from the former policy pulls one back."""
    case = Case(5, kind="categorical", n=100)
    case.pi = nn.Sequential(nn.Linear(case.trunk[-1].out_features, 3))
    case.parameters = [*nn.ModuleList([case.trunk, case.vf_trunk, case.pi, case.vf]).parameters()]
    case.sizes, case.n_logits = [3], 3
    with torch.no_grad():
        case.pi[0].bias[1] = -300
    case.make_rows()
    case.action_mask, case.actions[:], case.logp[:] = None, 0, -0.7
    case.former = torch.zeros(case.n_rows, 3)
    case.former[:, 2] = -300
    case.options["kl_coeff"] = 0.7
    gradients, sums = case.by_hand(variant)
    want, terms = case.by_autograd()
    assert_close(gradients, want)
    assert sums["former_kl"] == pytest.approx(terms["former_kl"]) and sums["former_kl"] > 0


@pytest.mark.parametrize("kind", ["categorical", "choices"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_masked_logits_have_no_derivative(variant, kind):
    """Nor have those of a row whose own action is masked, or of one without any legal choice."""
    case = Case(4, kind=kind, n=90)
    case.action_mask = torch.ones(case.n_rows, case.n_logits, dtype=torch.bool)
    without, own, n_first = case.order[:30], case.order[30:60], case.sizes[0]
    case.action_mask[own, :n_first] = torch.arange(n_first) != case.actions[own, :1]
    case.action_mask[without, :n_first] = False
    case.former = torch.randn(case.n_rows, case.n_logits).masked_fill(~case.action_mask, LEAST)
    case.loss_mask, case.options["kl_coeff"] = None, 0.7
    with torch.no_grad():
        case.logp = case.policy(torch.float32)[0]  # so that no ratio is clipped
    want, _ = case.by_autograd()
    assert n_first > 1 and (case.logp[own] == LEAST).all() and all(torch.isfinite(each).all() for each in want)
    assert_close(case.by_hand(variant)[0], want)


@pytest.mark.parametrize("log_std", [-0.5, 0.5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_standard_deviations_at_their_bound_have_a_derivative(variant, log_std):
    """As inside the bounds; torch.clamp() has a derivative at its bounds in some versions, from 2.15 on it has none."""
    case = Case(6, kind="free gaussian", n=100)
    with torch.no_grad():
        case.log_std.fill_(log_std)
    case.bound = 0.6
    want, _ = case.by_autograd()
    assert want[-1].all()
    case.bound = 0.5
    assert_close(case.by_hand(variant)[0], want)


def test_values_may_be_left_out():
    case = Case(0, kind="categorical", n=100)
    gradients = {each: torch.zeros_like(each) for each in case.parameters}
    layers = DenseLayers(case.n_obs)
    values = layers.add([*case.vf], features := layers.add([*case.trunk]))
    logits = layers.add([*case.pi], features)
    net = DenseNet(case.n_obs, layers.layers, logits, values, case.sizes)
    case.is_shared, case.options["value_coeff"] = True, 0.0
    case.action_mask = case.former = None
    want, _ = case.by_autograd()
    alone = gradient_of(needed_layers(net._replace(values=OBSERVATIONS)), gradients)
    alone.compute(case.obs.numpy(), case.rows(), case.order.numpy(), **{**case.options, "kl_coeff": 0})
    assert_close([*gradients.values()], want)
    assert not any(gradients[each].any() for each in case.vf.parameters())


def test_frozen_layers_get_no_gradient():
    case = Case(2, kind="categorical", n=100)
    frozen = case.trunk[0].weight
    gradients = {each: torch.zeros_like(each) for each in case.parameters if each is not frozen}
    case.compiled(gradients).compute(case.obs.numpy(), case.rows(), case.order.numpy(), **case.options)
    want, _ = case.by_autograd()
    pairs = [
        (gradients[each], theirs) for each, theirs in zip(case.parameters, want, strict=True) if each is not frozen
    ]
    assert_close(*zip(*pairs, strict=True))


def test_shared_and_normalising_layers_have_no_compiled_gradient():
    shared = nn.Linear(4, 4)
    for parts in ([shared, shared], [nn.Linear(4, 4), nn.LayerNorm(4)]):
        layers = DenseLayers(4)
        logits = layers.add(parts)
        with pytest.raises(NotDenseError, match=r"share|normalisation"):
            gradient_of(DenseNet(4, layers.layers, logits, -1, [4]), {})


WEIGHT, BIAS = np.zeros((5, 4), np.float32), np.zeros(5, np.float32)
LAYER = (-1, WEIGHT, BIAS, "tanh", 1.0, None, None, None)


@pytest.mark.parametrize(
    ("layers", "logits", "values", "options"),
    [
        ([LAYER], 1, -1, {"sizes": [5]}),
        ([LAYER], 0, 0, {"sizes": [5]}),
        ([LAYER, LAYER], 0, 1, {"sizes": [5]}),
        ([LAYER], 0, -1, {"sizes": [4]}),
        ([LAYER], 0, -1, {"sizes": [6, -1]}),
        ([LAYER], 0, -1, {}),
        ([LAYER], 0, -1, {"log_std": np.zeros(4, np.float32)}),
        ([(0, *LAYER[1:])], 0, -1, {"sizes": [5]}),
        ([(-1, WEIGHT.astype(np.float64), *LAYER[2:])], 0, -1, {"sizes": [5]}),
        ([(-1, WEIGHT.T, *LAYER[2:])], 0, -1, {"sizes": [4]}),
        ([(*LAYER[:5], WEIGHT[1:], None)], 0, -1, {"sizes": [5]}),
    ],
)
def test_nets_are_checked(layers, logits, values, options):
    with pytest.raises(ValueError, match=r"must|expected|need"):
        PPOGradient(4, layers, logits, values, **options)


@pytest.mark.parametrize("at", range(3))
def test_rows_are_checked(at):
    net = PPOGradient(4, [LAYER], 0, -1, sizes=[5])
    given = [np.zeros((9, 4), np.float32), np.zeros((9, net.width), np.float32), np.arange(9)]
    options = {"clip": 0.2, "value_coeff": 0.0, "entropy_coeff": 0.0}
    net.compute(*given, **options)
    for bad in (given[at][:, None], given[at].astype(np.int16)):
        with pytest.raises(ValueError, match="expected"):
            net.compute(*given[:at], bad, *given[at + 1 :], **options)
    assert net.compute(given[0], given[1], given[2][:0], **options).tolist() == [0.0] * len(SUMS)
