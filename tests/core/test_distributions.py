import copy
import math
import pickle
from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
import torch

from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.spaces.structs import flatten_struct
from fastmarl.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    MultiDistribution,
    get_action_dist_cls,
)
from fastmarl.errors import ConfigError

spaces = gym.spaces
NESTED = spaces.Dict(
    {
        "z": spaces.Discrete(3),
        "a": spaces.Tuple([spaces.Box(-1, 1, (2, 2)), spaces.MultiDiscrete([2, 4])]),
        "m": spaces.MultiBinary(3),
    }
)
SPACES = {
    "discrete": spaces.Discrete(5),
    "discrete of one": spaces.Discrete(1),
    "discrete with start": spaces.Discrete(4, start=-2),
    "box": spaces.Box(-1, 1, (3,)),
    "box of numbers": spaces.Box(-1, 1, ()),
    "box of rank 3": spaces.Box(-1, 1, (2, 1, 3), np.float64),
    "equal parts": spaces.MultiDiscrete([3, 3]),
    "unequal parts": spaces.MultiDiscrete([3, 1, 5]),
    "parts of rank 2": spaces.MultiDiscrete([[3, 2], [4, 4]]),
    "binary": spaces.MultiBinary(4),
    "binary of rank 2": spaces.MultiBinary([2, 3]),
    "nested": NESTED,
}
EACH_SPACE = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
LOWEST = torch.finfo(torch.float32).min
P_FALSE_ALARM = 1e-6


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logits_for(space: gym.Space, n: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, get_action_dist_cls(space).required_input_dim(space), generator=generator(seed))


def reference(space: gym.Space, logits: torch.Tensor):
    """torch's own distribution, over [B, size]."""
    library = torch.distributions
    if isinstance(space, spaces.Discrete):
        return library.Categorical(logits=logits)
    if isinstance(space, spaces.MultiBinary):
        return library.Independent(library.Bernoulli(logits=logits), 1)
    loc, log_std = logits.chunk(2, -1)
    return library.Independent(library.Normal(loc, log_std.exp()), 1)


def assert_distributed_as(counts: torch.Tensor, probs: torch.Tensor) -> None:
    """Chi-square test of counts [k] against probabilities [k]; what has probability 0 must not occur."""
    possible = probs > 0
    assert counts[~possible].sum() == 0
    expected = probs[possible].double() * counts.sum()
    assert expected.min() > 5, "draw more"
    statistic = float(((counts[possible] - expected) ** 2 / expected).sum())
    freedom = int(possible.sum()) - 1
    # Laurent and Massart's bound of the tail.
    tail = -math.log(P_FALSE_ALARM)
    assert statistic <= freedom + 2 * math.sqrt(freedom * tail) + 2 * tail


@EACH_SPACE
@pytest.mark.parametrize("n", [1, 2, 700])
def test_samples_have_the_spaces_structure_and_their_own_logp(space, n):
    kind = get_action_dist_cls(space)
    logits = logits_for(space, n)
    actions, logp = kind.sample_and_logp(logits, generator())
    most_likely = kind.deterministic(logits)
    distribution = kind.from_logits(logits)
    leaves = RowLayout(space).leaves
    for value in (actions, most_likely, distribution.sample(generator())):
        assert [path for path, _ in flatten_struct(value)] == [leaf.path for leaf in leaves]
        for (_, tensor), leaf in zip(flatten_struct(value), leaves, strict=True):
            assert tensor.shape == (n, *leaf.shape)
            assert tensor.is_floating_point() == (leaf.dtype.kind == "f")
    assert logp.shape == (n,)
    assert logp.dtype == torch.float32
    torch.testing.assert_close(logp, distribution.logp(actions), rtol=1e-4, atol=1e-4)
    assert (distribution.logp(most_likely) >= logp - 1e-4).all()
    for (_, greedy), (_, again) in zip(
        flatten_struct(most_likely), flatten_struct(distribution.to_deterministic().sample()), strict=True
    ):
        assert torch.equal(greedy, again)


@EACH_SPACE
def test_samples_repeat_with_the_generator_and_leave_logits_alone(space):
    kind = get_action_dist_cls(space)
    logits = logits_for(space, 50)
    before = logits.clone()
    first, again, other = (flatten_struct(kind.sample_and_logp(logits, generator(seed))[0]) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(first, again, strict=True))
    if space != SPACES["discrete of one"]:
        assert not all(torch.equal(a, b) for (_, a), (_, b) in zip(first, other, strict=True))
    kind.deterministic(logits)
    assert torch.equal(logits, before)
    assert logits._version == 0


@pytest.mark.parametrize("name", ["discrete", "box", "binary"])
def test_logp_entropy_and_kl_are_those_of_torch(name):
    space = SPACES[name]
    logits, other_logits = logits_for(space, 40), logits_for(space, 40, seed=2)
    ours, theirs = get_action_dist_cls(space).from_logits(logits), reference(space, logits)
    other, other_theirs = get_action_dist_cls(space).from_logits(other_logits), reference(space, other_logits)
    actions = ours.sample(generator())
    expected = theirs.log_prob(actions.float() if name == "binary" else actions)
    torch.testing.assert_close(ours.logp(actions), expected)
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.kl(other), torch.distributions.kl_divergence(theirs, other_theirs))


@pytest.mark.parametrize("name", ["equal parts", "unequal parts", "parts of rank 2"])
def test_multi_categorical_sums_over_its_parts(name):
    space = SPACES[name]
    nvec = space.nvec.ravel().tolist()
    logits, other_logits = logits_for(space, 40), logits_for(space, 40, seed=2)
    kind = get_action_dist_cls(space)
    ours, other = kind.from_logits(logits), kind.from_logits(other_logits)
    parts = [torch.distributions.Categorical(logits=part) for part in logits.split(nvec, -1)]
    other_parts = [torch.distributions.Categorical(logits=part) for part in other_logits.split(nvec, -1)]
    actions = ours.sample(generator())
    flat = actions.reshape(40, -1)
    torch.testing.assert_close(ours.logp(actions), sum(p.log_prob(flat[:, i]) for i, p in enumerate(parts)))
    torch.testing.assert_close(ours.entropy(), sum(part.entropy() for part in parts))
    kls = [torch.distributions.kl_divergence(p, q) for p, q in zip(parts, other_parts, strict=True)]
    torch.testing.assert_close(ours.kl(other), sum(kls))


def test_multi_distribution_sums_over_its_parts():
    logits, other_logits = logits_for(NESTED, 40), logits_for(NESTED, 40, seed=2)
    kind = get_action_dist_cls(NESTED)
    ours, other = kind.from_logits(logits), kind.from_logits(other_logits)
    leaves = [NESTED["a"][0], NESTED["a"][1], NESTED["m"], NESTED["z"]]
    kinds = [get_action_dist_cls(leaf) for leaf in leaves]
    dims = [k.required_input_dim(leaf) for k, leaf in zip(kinds, leaves, strict=True)]
    parts = [k.from_logits(part) for k, part in zip(kinds, logits.split(dims, -1), strict=True)]
    others = [k.from_logits(part) for k, part in zip(kinds, other_logits.split(dims, -1), strict=True)]
    actions = ours.sample(generator())
    values = [value for _, value in flatten_struct(actions)]
    torch.testing.assert_close(ours.logp(actions), sum(p.logp(v) for p, v in zip(parts, values, strict=True)))
    torch.testing.assert_close(ours.entropy(), sum(p.entropy() for p in parts))
    torch.testing.assert_close(ours.kl(other), sum(p.kl(q) for p, q in zip(parts, others, strict=True)))


# Sizes on either side of each switch between ways to draw.
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("n", "k"), [(2, 3), (80, 3), (100, 3), (1024, 5), (4, 40), (64, 40)])
@pytest.mark.parametrize("make_masked", [-math.inf, LOWEST], ids=["-inf", "lowest"])
def test_categorical_draws_the_softmax_and_never_a_masked_action(n, k, make_masked):
    row = torch.randn(k, generator=generator(5))
    row[0] = row[-1] = make_masked
    row[k // 2] += 3
    rows, source = row.expand(n, k).contiguous(), generator(6)
    counts = torch.zeros(k, dtype=torch.int64)
    for _ in range(-(-200_000 // n) if n > 10 else 5_000):
        actions, logp = Categorical.sample_and_logp(rows, source)
        counts += actions.bincount(minlength=k)
    assert logp.isfinite().all()
    assert_distributed_as(counts, row.softmax(-1))


@pytest.mark.parametrize("n", [3, 500])
def test_categorical_with_extreme_logits(n):
    """One possible action in each row, at every place, with huge and tiny logits around."""
    k = 4
    only = torch.arange(n) % k
    for low, high in [(-math.inf, 0.0), (LOWEST, 0.0), (-1e30, 1e30), (-200.0, 3e38), (-math.inf, -3e38)]:
        logits = torch.full((n, k), low).scatter_(1, only.unsqueeze(1), high)
        for seed in range(20):
            actions, logp = Categorical.sample_and_logp(logits, generator(seed))
            assert torch.equal(actions, only)
            assert (logp == 0).all()
        distribution = Categorical.from_logits(logits)
        assert torch.equal(distribution.sample(generator()), only)
        assert (distribution.entropy() == 0).all()
        assert (distribution.kl(distribution) == 0).all()


@pytest.mark.parametrize(("drawn", "expected"), [(0.0, 1), (1 - 2**-53, 6)])
def test_the_least_and_the_greatest_random_number_draw_possible_actions(monkeypatch, drawn, expected):
    """The sums of rounded probabilities are not quite 1, and the first and last actions are masked."""
    logits = torch.randn(1000, 8, generator=generator(5))
    logits[:, 0] = logits[:, -1] = -math.inf
    monkeypatch.setattr(torch, "rand", lambda size, dtype, generator: torch.full(size, drawn, dtype=dtype))
    actions, _ = Categorical.sample_and_logp(logits)
    assert (actions == expected).all()


@pytest.mark.parametrize("n", [3, 500])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_categorical_says_nan_in_the_row_that_has_one(n, bad):
    logits = torch.zeros(n, 4)
    logits[1, 2] = bad
    actions, logp = Categorical.sample_and_logp(logits, generator())
    assert logp.isnan().tolist() == [i == 1 for i in range(n)]
    assert ((actions >= 0) & (actions < 4)).all()


def test_multi_categorical_draws_each_part_from_its_softmax():
    space = spaces.MultiDiscrete([2, 4, 3])
    row = torch.randn(9, generator=generator(5))
    actions, _ = get_action_dist_cls(space).sample_and_logp(row.expand(60_000, 9), generator(6))
    for i, part in enumerate(row.split([2, 4, 3])):
        assert_distributed_as(actions[:, i].bincount(minlength=len(part)), part.softmax(-1))
    joint = Counter((actions[:, 0] * 3 + actions[:, 2]).tolist())
    expected = torch.outer(row[:2].softmax(-1), row[6:].softmax(-1)).flatten()
    assert_distributed_as(torch.tensor([joint[i] for i in range(6)]), expected)


def test_bernoulli_draws_the_sigmoid_and_never_the_impossible():
    logits = torch.tensor([0.3, -2.0, math.inf, -math.inf, LOWEST])
    actions, logp = Bernoulli.sample_and_logp(logits.expand(100_000, 5), generator(6))
    assert actions.dtype == torch.int8
    for i, p in enumerate(logits.sigmoid()):
        assert_distributed_as(actions[:, i].bincount(minlength=2), torch.stack([1 - p, p]))
    assert logp.isfinite().all()


def test_gaussian_draws_have_the_given_moments():
    loc, log_std = torch.tensor([3.0, -1.0]), torch.tensor([0.5, -2.0])
    n = 200_000
    actions, _ = DiagGaussian.sample_and_logp(torch.cat([loc, log_std]).expand(n, 4), generator(6))
    z = (actions.double() - loc) / log_std.exp()
    assert (z.mean(0).abs() < 5 / math.sqrt(n)).all()
    assert ((z.square().mean(0) - 1).abs() < 5 * math.sqrt(2 / n)).all()
    assert abs(float((z[:, 0] * z[:, 1]).mean())) < 5 / math.sqrt(n)


@EACH_SPACE
def test_gradients_reach_the_logits_through_logp_entropy_and_kl(space):
    kind = get_action_dist_cls(space)
    logits = logits_for(space, 6).requires_grad_()
    distribution = kind.from_logits(logits)
    other = kind.from_logits(logits_for(space, 6, seed=4))
    terms = [distribution.logp(kind.deterministic(logits.detach())), distribution.entropy(), distribution.kl(other)]
    for term in terms:
        (gradient,) = torch.autograd.grad(term.sum(), logits, retain_graph=True)
        assert gradient.isfinite().all()
    if space != SPACES["discrete of one"]:
        assert (gradient != 0).any()


def test_gradients_stay_finite_under_a_mask():
    logits = torch.tensor([[0.5, -math.inf, 1.0], [0.0, LOWEST, -1.0]], requires_grad=True)
    distribution = Categorical.from_logits(logits)
    loss = distribution.entropy().sum() + distribution.logp(torch.tensor([0, 2])).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
    assert (gradient[:, 1] == 0).all()


def test_rsample_has_a_gradient():
    logits = torch.randn(5, 4, generator=generator(), requires_grad=True)
    one_hot = Categorical.from_logits(logits).rsample(generator())
    assert torch.equal(one_hot.detach().round().sum(-1), torch.ones(5))
    (gradient,) = torch.autograd.grad(one_hot[:, 0].sum(), logits)
    assert (gradient != 0).any()
    sample = DiagGaussian.from_logits(logits).rsample(generator())
    (gradient,) = torch.autograd.grad(sample.sum(), logits)
    assert (gradient[:, :2] == 1).all()
    with pytest.raises(NotImplementedError, match=r"Bernoulli does not support rsample\(\)"):
        Bernoulli.from_logits(logits).rsample()


def test_rsample_gives_empty_spaces_empty_actions():
    space = gym.spaces.Dict({"none": gym.spaces.Tuple(()), "some": gym.spaces.Discrete(3)})
    logits = torch.zeros(4, 3, requires_grad=True)
    sample = get_action_dist_cls(space).from_logits(logits).rsample(generator())
    assert sample["none"] == ()
    assert sample["some"].requires_grad


@pytest.mark.parametrize("name", ["discrete", "box", "unequal parts", "binary"])
def test_a_time_axis_is_one_more_batch_axis(name):
    space = SPACES[name]
    kind = get_action_dist_cls(space)
    logits = logits_for(space, 12)
    in_time, flat = kind.from_logits(logits.reshape(3, 4, -1)), kind.from_logits(logits)
    actions = in_time.sample(generator())
    assert actions.shape == (3, 4, *space.shape)
    torch.testing.assert_close(in_time.logp(actions).reshape(12), flat.logp(actions.reshape(12, *space.shape)))
    torch.testing.assert_close(in_time.entropy().reshape(12), flat.entropy())


@EACH_SPACE
def test_the_class_is_cached_and_can_be_pickled(space):
    kind = get_action_dist_cls(space)
    assert isinstance(kind, type)
    assert issubclass(kind, Distribution)
    assert get_action_dist_cls(copy.deepcopy(space)) is kind
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert copy.deepcopy(kind) is kind


def test_the_kinds_are_rllibs():
    kinds = {name: get_action_dist_cls(space) for name, space in SPACES.items()}
    assert kinds["discrete"] is Categorical
    assert kinds["box"] is DiagGaussian
    assert kinds["binary"] is Bernoulli
    assert issubclass(kinds["unequal parts"], MultiCategorical)
    assert issubclass(kinds["nested"], MultiDistribution)
    dims = {name: kind.required_input_dim(SPACES[name]) for name, kind in kinds.items()}
    assert dims["discrete"] == 5
    assert dims["box of rank 3"] == 12
    assert dims["unequal parts"] == 9
    assert dims["binary of rank 2"] == 6
    assert dims["nested"] == 3 + 8 + 6 + 3


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Box(0, 9, (2,), np.int64), "float dtype; for integer actions, use Discrete"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 9, (), np.uint8)), "float dtype"),
        (spaces.Text(3), "no action distribution for Text"),
        (spaces.Dict(), "the space is empty"),
        (None, "no action distribution for None"),
    ],
)
def test_other_spaces_are_refused(space, says):
    with pytest.raises(ConfigError, match=says):
        get_action_dist_cls(space)


def test_a_padded_multi_categorical_first_used_while_sampling_can_be_trained():
    """Tensors made under inference_mode can't be part of a graph."""
    space = spaces.MultiDiscrete([7, 2, 3])
    kind = get_action_dist_cls(space)
    with torch.inference_mode():
        kind.sample_and_logp(logits_for(space, 4))
    logits = logits_for(space, 4).requires_grad_()
    kind.from_logits(logits).entropy().sum().backward()
    assert (logits.grad != 0).any()


def test_deterministic_returns_its_input():
    loc = torch.randn(4, 2, generator=generator())
    actions, logp = Deterministic.sample_and_logp(loc)
    assert torch.equal(actions, loc)
    assert torch.equal(logp, torch.zeros(4))
    assert torch.equal(Deterministic.from_logits(loc).logp(loc), torch.zeros(4))
    assert Deterministic.required_input_dim(SPACES["box"]) == 3


def test_a_kind_of_ones_own_needs_four_methods():
    class Uniform(Distribution):
        def __init__(self, width):
            self.width = width

        @classmethod
        def from_logits(cls, logits):
            return cls(logits.squeeze(-1).exp())

        def sample(self, generator=None):
            return torch.rand(self.width.shape, generator=generator) * self.width

        def logp(self, value):
            return -self.width.log()

        def to_deterministic(self):
            return Deterministic(self.width / 2, event_dims=0)

    logits = torch.zeros(3, 1)
    actions, logp = Uniform.sample_and_logp(logits, generator())
    assert actions.shape == logp.shape == (3,)
    assert Uniform.deterministic(logits).tolist() == [0.5] * 3
