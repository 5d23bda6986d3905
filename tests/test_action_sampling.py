"""Actions drawn without torch: the same distributions and log-probabilities as torch's, from other random numbers."""

import math
from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch

from fastmarl.acting.draws import make_action_sampler
from fastmarl.distributions import Categorical, DiagGaussian, get_action_dist_cls
from fastmarl.kernels.sample import sample_choices_numpy
from fastmarl.native._draws import ChoiceDraws

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
    return make_action_sampler(get_action_dist_cls(space), np.random.default_rng(seed))


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


def copied(arrays):
    return [array.copy() for array in arrays]


@pytest.mark.parametrize("space", SPACES[:3], ids=str)
def test_choices_are_drawn_as_numpy_draws_them(rng, space):
    logits = random_logits(rng, space, 40)
    actions, logp = sampler_of(space).sample(logits)
    nvec_P = np.atleast_1d(space.n if isinstance(space, gym.spaces.Discrete) else space.nvec.ravel())
    expected, expected_logp = np.empty((40, len(nvec_P)), np.int64), np.empty(40, np.float32)
    uniform = np.random.default_rng(0).random(expected.shape)
    sample_choices_numpy(logits, nvec_P, uniform, expected, expected_logp)
    np.testing.assert_array_equal(actions.reshape(40, -1), expected)
    np.testing.assert_allclose(logp, expected_logp, rtol=1e-6)


def test_choices_are_only_written_where_there_is_room(rng):
    logits, (actions, logp) = np.zeros((3, 4), np.float32), (np.empty((3, 1), np.int64), np.empty(3, np.float32))
    draws = ChoiceDraws(rng, None)
    draws.draw_into(logits.astype(float), actions, logp)
    bad = [(actions[:2], logp), (actions, logp[:2]), (actions.astype(np.int32), logp), (actions, logp.astype(float))]
    for wrong in [*bad, (actions[::-1], logp), (actions, np.zeros(6, np.float32)[::2])]:
        with pytest.raises(ValueError, match="expected room for 3 actions of 1"):
            draws.draw_into(logits, *wrong)
    with pytest.raises(ValueError, match=r"expected logits \[n, k\], got \(3,\)"):
        draws.draw_into(logits[:, 0], actions, logp)


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
        assert make_action_sampler(kind, rng) is None
