"""bradley_terry(): the most likely ratings, found by other means, and what is known of them."""

import math

import numpy as np
import pytest
from support.optional import needed

from fastmarl.errors import ConfigError
from fastmarl.play.arena.ratings import ELO, bradley_terry


def random_scores(rng, n, games=40):
    """All pairs have met; a third of the games are drawn."""
    strength = rng.normal(size=n)
    scores = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            p = 1 / (1 + math.exp(strength[j] - strength[i]))
            drawn, wins = rng.binomial(games, 0.3), rng.binomial(games, p)
            scores[i, j], scores[j, i] = wins + drawn / 2, games - wins + drawn / 2
    return scores


def negative_log_posterior(x, scores, prior):
    """Pair by pair, in log-odds, with the last player's rating 0."""
    x, total = np.append(x, 0.0), 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            if i != j and scores[i, j] + scores[j, i]:
                total += (scores[i, j] + prior / 2) * math.log1p(math.exp(x[j] - x[i]))
    return total


@pytest.mark.needs("scipy")
@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_ratings_are_those_that_scipy_finds(rng, prior):
    optimize = needed("scipy.optimize")
    for n in (2, 3, 7):
        scores = random_scores(rng, n) + 1
        found = optimize.minimize(negative_log_posterior, np.zeros(n - 1), (scores, prior), tol=1e-10).x
        expected = ELO * (np.append(found, 0) - found.sum() / n)
        ratings, _ = bradley_terry(scores, prior=prior)
        np.testing.assert_allclose(ratings, expected, atol=0.01)


def test_standard_errors_are_those_of_the_constrained_second_derivatives(rng):
    scores, step = random_scores(rng, 5) + 1, 1e-3
    ratings, errors = bradley_terry(scores)
    x = (ratings[:-1] - ratings[-1]) / ELO

    def second(a, b):
        at = [negative_log_posterior(x + s * a + t * b, scores, 1.0) for s in (1, -1) for t in (1, -1)]
        return (at[0] - at[1] - at[2] + at[3]) / (4 * step**2)

    unit = np.eye(4) * step
    covariance = np.linalg.inv([[second(a, b) for b in unit] for a in unit])  # of the others against the last
    centred = np.vstack([np.eye(4), np.zeros(4)]) - 1 / 5  # to ratings that sum to 0
    expected = ELO * np.sqrt(np.diagonal(centred @ covariance @ centred.T))
    np.testing.assert_allclose(errors, expected, rtol=1e-3)


@pytest.mark.parametrize("prior", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(("wins", "losses"), [(30, 10), (1, 99), (7.5, 2.5)])
def test_two_players_have_a_closed_form(wins, losses, prior):
    ratings, errors = bradley_terry([[0, wins], [losses, 0]], prior=prior)
    won, lost = wins + prior / 2, losses + prior / 2
    assert ratings[0] - ratings[1] == pytest.approx(400 * math.log10(won / lost))
    assert ratings.sum() == pytest.approx(0)
    of_difference = ELO * math.sqrt(1 / won + 1 / lost)  # of a log-odds; each rating is half of the difference
    np.testing.assert_allclose(errors, of_difference / 2)


def test_the_order_of_players_does_not_matter(rng):
    scores, order = random_scores(rng, 8), rng.permutation(8)
    ratings, errors = bradley_terry(scores)
    permuted = bradley_terry(scores[np.ix_(order, order)])
    np.testing.assert_allclose(permuted, (ratings[order], errors[order]), atol=1e-6)


def test_players_that_always_win_are_finite_with_a_prior_only():
    scores = np.triu(np.full((30, 30), 1000.0), 1)  # each beats all after it
    ratings, errors = bradley_terry(scores)
    assert np.isfinite(ratings).all() and (np.diff(ratings) < 0).all() and (errors > 0).all()
    with pytest.raises(ConfigError, match=r"infinite.*prior above 0"):
        bradley_terry(scores, prior=0)
    ratings, _ = bradley_terry([[0, 10**9], [0, 0]])
    assert ratings[0] - ratings[1] == pytest.approx(400 * math.log10(2e9 + 1))


def test_equal_results_are_equal_ratings_and_one_player_has_rating_0():
    ratings, errors = bradley_terry(np.full((4, 4), 5.0))
    np.testing.assert_allclose(ratings, 0, atol=1e-9)
    assert np.ptp(errors) < 1e-9 and errors[0] > 0
    assert [each.tolist() for each in bradley_terry([[3.0]])] == [[0.0], [0.0]]


def test_pairs_that_have_not_met_get_nothing_from_the_prior():
    chain = [[0, 3, 0], [1, 0, 3], [0, 1, 0]]
    ratings, _ = bradley_terry(chain)
    assert ratings[0] - ratings[1] == pytest.approx(400 * math.log10(3.5 / 1.5))
    assert ratings[1] - ratings[2] == pytest.approx(400 * math.log10(3.5 / 1.5))


@pytest.mark.parametrize(
    ("scores", "prior", "message"),
    [
        (np.zeros((2, 3)), 1, r"square matrix, got shape \(2, 3\)"),
        (np.zeros((0, 0)), 1, "square matrix"),
        ([[0, -1], [2, 0]], 1, ">= 0"),
        ([[0, math.nan], [2, 0]], 1, "finite"),
        ([[0, 1], [2, 0]], -1, "prior must be a finite number of games >= 0, got -1"),
        ([[0, 1], [2, 0]], math.inf, "prior"),
        ([[0, 1], [2, 0]], "1", "prior must be a finite number of games >= 0, got '1'"),
        ([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], 1, "not connected"),
    ],
)
def test_impossible_scores(scores, prior, message):
    with pytest.raises(ConfigError, match=message):
        bradley_terry(scores, prior=prior)
