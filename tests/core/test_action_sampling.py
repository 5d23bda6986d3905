"""Actions drawn without torch: the same distributions and log-probabilities as torch's, from other random numbers."""

import math
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch

from fastmarl.core.inference.inference import make_draws
from fastmarl.core.native._dense import VARIANTS
from fastmarl.core.native._draws import ChoiceDraws, GaussianDraws
from fastmarl.distributions import Categorical, DiagGaussian, get_action_dist_cls

SPACES = [
    gym.spaces.Discrete(4),
    gym.spaces.MultiDiscrete([3, 1, 5]),
    gym.spaces.MultiDiscrete([[2, 3], [4, 2]]),
    gym.spaces.Box(-1, 1, (3,), np.float32),
    gym.spaces.Box(-1, 1, (2, 2), np.float32),
]


@pytest.fixture(params=SPACES, ids=str)
def space(request):
    return request.param


def sampler_of(space, seed=0):
    return make_draws(get_action_dist_cls(space), np.random.default_rng(seed))


def random_logits(rng, space, n):
    return rng.normal(size=(n, get_action_dist_cls(space).required_input_dim(space))).astype(np.float32)


def test_an_empty_batch_has_no_actions(space):
    logits = np.empty((0, get_action_dist_cls(space).required_input_dim(space)), np.float32)
    actions, logp = sampler_of(space).sample(logits)
    assert actions.shape == sampler_of(space).likeliest(logits).shape == (0, *space.shape) and logp.shape == (0,)


@pytest.mark.parametrize("n", [1, 64])
def test_log_probabilities_are_torchs(rng, space, n):
    logits = random_logits(rng, space, n)
    actions, logp = sampler_of(space).sample(logits)
    distribution = get_action_dist_cls(space).from_logits(torch.from_numpy(logits))
    expected = distribution.logp(torch.from_numpy(actions))
    assert actions.shape == (n, *space.shape) and logp.dtype == np.float32
    np.testing.assert_allclose(logp, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 64])
def test_the_likeliest_actions_are_torchs(rng, space, n):
    logits = random_logits(rng, space, n)
    expected = get_action_dist_cls(space).deterministic(torch.from_numpy(logits)).numpy()
    got = sampler_of(space).likeliest(logits)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype and not np.shares_memory(got, logits)


def test_a_seed_gives_the_same_actions_however_they_are_batched(rng, space):
    logits = random_logits(rng, space, 30)
    at_once, by_parts = sampler_of(space), sampler_of(space)
    expected = at_once.sample(logits)
    parts = [copied(by_parts.sample(logits[begin:end])) for begin, end in pairwise([0, 1, 2, 10, 30])]
    for whole, pieces in zip(expected, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(pieces), whole)
    other = sampler_of(space, seed=1).sample(logits)
    assert (other[0] != expected[0]).any()


def test_memory_that_was_ever_enough_is_written_again(rng, space):
    logits, sampler = random_logits(rng, space, 20), sampler_of(space)
    first = sampler.sample(logits)
    expected = copied(first)
    for array in first:
        array[...] = 0
    for array, again, before in zip(first, sampler.sample(logits[:7]), expected, strict=True):
        assert np.shares_memory(array, again) and (again != before[:7]).any()


def test_there_must_be_a_choice():
    with pytest.raises(ValueError, match="at least one choice"):
        ChoiceDraws(np.random.default_rng(0)).sample(np.empty((2, 0), np.float32))


def copied(arrays):
    return [array.copy() for array in arrays]


def choices_by_numpy(logits, nvec, uniform):
    """(actions [n, parts], log-probabilities [n]) by inverting cumulative distributions."""
    actions, logp = np.empty(uniform.shape, np.int64), np.zeros(len(logits))
    for i, row in enumerate(logits.astype(np.float64)):
        for part, scores in enumerate(np.split(row, np.cumsum(nvec)[:-1])):
            weights = np.exp(scores - scores.max())
            reached = np.cumsum(weights)
            chosen = np.flatnonzero(reached > uniform[i, part] * reached[-1])
            actions[i, part] = action = chosen[0] if len(chosen) else 0
            logp[i] += scores[action] - scores.max() - math.log(reached[-1]) if reached[-1] > 0 else np.nan
    return actions, logp


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("nvec", [None, [2, 1, 4]])
def test_choices_are_those_of_numpy(rng, nvec, dtype, variant):
    """Row by row, also where nothing or all can be drawn, or nothing is right."""
    k, parts = (5, 1) if nvec is None else (7, 3)
    logits = rng.normal(size=(300, k)).astype(np.float32) * rng.choice([0.1, 1, 100, 1e4], (300, 1)).astype(np.float32)
    logits[100:, 1:][rng.random((200, k - 1)) < 0.3] = -np.inf
    logits[200:, 1:][rng.random((100, k - 1)) < 0.3] = np.finfo(np.float32).min
    logits[100:, [2, 3]] = 0
    logits[:6, 0] = -np.inf, np.inf, np.nan, -1e30, 1e30, 0
    logits[6] = -np.inf
    got, logp = ChoiceDraws(np.random.default_rng(1), nvec, dtype=dtype, variant=variant).sample(logits)
    with np.errstate(invalid="ignore"):
        want, want_logp = choices_by_numpy(logits, nvec or [k], np.random.default_rng(1).random((300, parts)))
    assert got.shape == ((300,) if nvec is None else (300, parts)) and got.dtype == dtype
    assert np.array_equal(got.reshape(300, parts), want) and np.isnan(logp[[1, 2, 6]]).all()
    np.testing.assert_allclose(logp, want_logp, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 17, 3000])
def test_any_number_of_choices_can_be_drawn_from(rng, k, variant):
    """Log-probabilities keep their accuracy, those near 0 and those of a choice that is hardly ever drawn, too."""
    logits = (rng.normal(size=(50, k)) * rng.choice([0.01, 1, 20], (50, 1))).astype(np.float32)
    actions, logp = ChoiceDraws(np.random.default_rng(1), variant=variant).sample(logits)
    want, want_logp = choices_by_numpy(logits, [k], np.random.default_rng(1).random((50, 1)))
    assert np.array_equal(actions, want[:, 0])
    np.testing.assert_allclose(logp, want_logp, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("nvec", [None, [2, 1, 54]])
def test_draws_of_a_row_do_not_depend_on_the_other_rows(rng, nvec, variant):
    logits = rng.normal(size=(70, 57), scale=[[1], [20]] * 35).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    at_once, by_parts = (ChoiceDraws(np.random.default_rng(1), nvec, variant=variant) for _ in range(2))
    expected = at_once.sample(logits)
    parts = [copied(by_parts.sample(logits[begin:end])) for begin, end in pairwise([0, 1, 4, 16, 33, 35, 36, 70])]
    for whole, pieces in zip(expected, zip(*parts, strict=True), strict=True):
        assert np.concatenate(pieces).tobytes() == whole.tobytes()


@pytest.mark.parametrize("n", [1, 5])
def test_the_least_random_number_draws_the_first_choice_that_is_possible(n, variant):
    bits = np.random.MT19937()
    state = bits.state
    state["state"]["key"][:] = 0
    bits.state = state  # in which every number is 0
    logits = np.tile(np.array([-np.inf, -np.inf, 0, 1], np.float32), (n, 1))
    assert ChoiceDraws(np.random.Generator(bits), variant=variant).sample(logits)[0].tolist() == [2] * n


def test_choices_are_distributed_as_softmax(rng, variant):
    """A pair of choices may be as rare as one in 100,000."""
    least = np.finfo(np.float32).min
    logits = np.array([0.0, 1.0, -np.inf, 2.0, -8.0, least, 0.5, -0.5], np.float32)
    nvec, n, n_calls = [6, 2], 100_000, 10
    draws, observed = ChoiceDraws(rng, nvec, variant=variant), np.zeros(12, np.int64)
    of_parts = [np.exp(part) / np.exp(part).sum() for part in np.split(logits.astype(np.float64), [6])]
    expected = np.outer(*of_parts).ravel()  # of both parts together: they must not depend on each other
    for _ in range(n_calls):
        actions, logp = draws.sample(np.tile(logits, (n, 1)))
        together = actions[:, 0] * 2 + actions[:, 1]
        observed += np.bincount(together, minlength=12)
        np.testing.assert_allclose(np.exp(logp), expected[together], rtol=2e-6)
    possible = expected > 0
    expected *= n * n_calls
    assert 5 < expected[possible].min() < 20 and not observed[~possible].any()
    chi_square = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square < 42  # 7 degrees of freedom: less than once in a million runs


@pytest.mark.parametrize("nvec", [[5], [2, 1, 3]])
def test_of_equals_the_first_is_the_likeliest_and_nan_is_above_all(rng, nvec):
    logits = rng.integers(-2, 2, (300, sum(nvec))).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[rng.random(logits.shape) < 0.1] = np.nan
    expected = [part.argmax(1) for part in np.split(logits, np.cumsum(nvec)[:-1], axis=1)]
    np.testing.assert_array_equal(ChoiceDraws(rng, nvec).likeliest(logits), np.stack(expected, 1))


@pytest.mark.parametrize("draws", [ChoiceDraws, GaussianDraws])
def test_logits_may_be_of_any_kind_but_not_of_another_size(rng, draws):
    logits = rng.normal(size=(4, 6)).astype(np.float32)
    whole, odd = (copied(draws(np.random.default_rng(2)).sample(each)) for each in (logits, np.asfortranarray(logits)))
    again = draws(np.random.default_rng(2)).sample(logits.astype(np.float64))
    for want, *others in zip(whole, odd, again, strict=True):
        assert all(other.tobytes() == want.tobytes() for other in others)
    for unfit in (logits[0], logits[:, :5]):
        with pytest.raises(ValueError, match=r"expected logits \[n, 6\], got"):
            draws(rng, *([[2, 4]] if draws is ChoiceDraws else [(3,)])).sample(unfit)


@pytest.mark.parametrize(("n", "k"), [(0, 2), (1, 1), (100, 3)])
def test_real_actions_are_means_and_normal_numbers(rng, n, k):
    logits = rng.normal(size=(n, 2 * k)).astype(np.float32)
    actions, logp = GaussianDraws(np.random.default_rng(4)).sample(logits)
    noise = np.random.default_rng(4).standard_normal((n, k), np.float32).astype(np.float64)
    mean, log_std = np.split(logits.astype(np.float64), 2, axis=1)
    np.testing.assert_allclose(actions, mean + noise * np.exp(log_std), rtol=1e-6, atol=1e-6)
    want_logp = -(0.5 * noise**2 + log_std + 0.5 * math.log(2 * math.pi)).sum(1)
    np.testing.assert_allclose(logp, want_logp, rtol=1e-6, atol=1e-6)


def test_nan_actions_have_nan_log_probabilities(rng):
    logits = np.zeros((3, 4), np.float32)
    logits[1, 1], logits[2, 0] = np.nan, np.inf
    actions, logp = GaussianDraws(rng).sample(logits)
    assert np.isnan(actions).any(1).tolist() == np.isnan(logp).tolist() == [False, True, False]


def test_gaussian_actions_are_normal():
    """Kolmogorov and Smirnov's statistic of each number, and the correlation between numbers."""
    n, mean, log_std = 100_000, [0.5, -2.0], [-1.0, 0.7]
    logits = np.tile(np.array([*mean, *log_std], np.float32), (n, 1))
    actions, _ = sampler_of(gym.spaces.Box(-1, 1, (2,), np.float32), seed=3).sample(logits)
    standard = (actions - mean) / np.exp(log_std)
    for column in np.sort(standard, axis=0).T:
        theory = 0.5 * (1 + np.array([math.erf(x / math.sqrt(2)) for x in column]))
        distance = max((np.arange(1, n + 1) / n - theory).max(), (theory - np.arange(n) / n).max())
        assert distance * math.sqrt(n) < 1.95  # once in a thousand; the seed is fixed
    assert abs((standard[:, 0] * standard[:, 1]).mean()) < 4 / math.sqrt(n)


def test_other_kinds_are_left_to_torch():
    class Own(DiagGaussian):
        pass

    class OwnChoice(Categorical):
        pass

    rng = np.random.default_rng(0)
    for kind in (Own, OwnChoice, *map(get_action_dist_cls, (gym.spaces.MultiBinary(2), gym.spaces.Tuple(SPACES[:1])))):
        assert make_draws(kind, rng) is None
