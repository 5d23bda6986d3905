"""Ratings of players, computed from the results of games between pairs."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from fastmarl.core.errors import ConfigError

ELO = 400 / math.log(10)  # points per unit of log-odds: a lead of 400 points means odds of 10 to 1
MOST_STEPS = 200
TOLERANCE = 1e-5  # length of the last step, in log-odds; each step squares the error


def bradley_terry(scores: np.ndarray, *, prior: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Compute maximum-likelihood ratings from the results of games, and their standard errors.

    In the model of Bradley and Terry ("Rank analysis of incomplete block designs", Biometrika 39, 1952), i beats j with
    probability p_ij = 1 / (1 + exp(x_j - x_i)). Let s_ij be the score of i against j, and n_ij = s_ij + s_ji. The log
    likelihood sum_ij s_ij log p_ij is concave in x; Newton's steps are halved until it grows. Its gradient is g_i =
    sum_j (s_ij - n_ij p_ij), and the observed information I is the Laplacian of a graph: I_ij = -n_ij p_ij p_ji for i
    != j, with rows that sum to zero. Only differences of x are determined: under the constraint sum x = 0, the
    covariance of x is the pseudo-inverse of I. A draw counts as half a win for each player, which varies less than a
    win or a loss, so the standard errors are upper bounds if there are draws.

    Args:
        scores: Array [P, P]: for i != j, the number of games that i won against j plus half of their draws. The
            diagonal is ignored.
        prior: Number of drawn games added to each pair that has met, at least 0. They keep ratings finite. With 1, each
            player of a pair gets half a win, which for two players is Jeffreys' prior (Firth, "Bias reduction of
            maximum likelihood estimates", Biometrika 80, 1993).

    Returns:
        (ratings, standard errors): float64 [P] on the Elo scale, 400 x / log 10; ratings sum to 0.

    Raises:
        ConfigError: If `scores` is not a square matrix of finite non-negative numbers; ratings cannot be compared
            because no games connect some players with the others; or ratings are infinite or too far apart to be
            computed because the prior is too small.
    """
    scores = _checked(scores, prior)
    n = len(scores)
    x, direction = np.zeros(n), np.full((n, n), 1 / n)  # equal changes have zero information
    likelihood = _log_likelihood(scores, x)
    for _ in range(MOST_STEPS):
        gradient, information = _derivatives(scores, x)
        try:
            step = np.linalg.solve(information + direction, gradient)
        except np.linalg.LinAlgError:
            break
        while (new := _log_likelihood(scores, x + step)) < likelihood - 1e-12 * abs(likelihood):
            step = step / 2
        x, likelihood = x + step, new
        if np.abs(step).max() < TOLERANCE:
            _, information = _derivatives(scores, x)
            covariance = np.linalg.inv(information + direction) - direction
            return ELO * (x - x.mean()), ELO * np.sqrt(np.diagonal(covariance).clip(0))
    raise ConfigError("ratings are too far apart for double precision; use a larger prior")


def _checked(scores: np.ndarray, prior: float) -> np.ndarray:
    """Check the scores and return a copy with the prior added and zeros on the diagonal."""
    scores = np.array(scores, np.float64)
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or not len(scores):
        raise ConfigError(f"scores must be a square matrix, got shape {scores.shape}")
    np.fill_diagonal(scores, 0)
    if not np.isfinite(scores).all() or (scores < 0).any():
        raise ConfigError("scores must be finite numbers >= 0")
    check_prior(prior)
    have_met = scores + scores.T > 0
    if not _is_connected(have_met):
        raise ConfigError("ratings can't be compared: some players are not connected to the others by games")
    scores += prior / 2 * have_met
    if not _is_connected(scores > 0):  # Ford, "Solution of a ranking problem from binary comparisons", 1957
        raise ConfigError("some ratings are infinite: some players have won all games against the others; use a prior "
                          "above 0")  # fmt: skip
    return scores


def check_prior(prior: Any) -> None:
    """Raise ConfigError unless the prior is a finite number >= 0."""
    if not (isinstance(prior, Real) and 0 <= float(prior) < math.inf):
        raise ConfigError(f"prior must be a finite number of games >= 0, got {prior!r}")


def _is_connected(edges: np.ndarray) -> bool:
    """Return whether directed edges, bool [P, P], lead from each player to every other."""
    return bool(np.linalg.matrix_power(edges | np.eye(len(edges), dtype=bool), len(edges)).all())


def _log_likelihood(scores: np.ndarray, x: np.ndarray) -> float:
    return -float((scores * np.logaddexp(0, x - x[:, None])).sum())


def _derivatives(scores: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (gradient, observed information)."""
    games, wins = scores + scores.T, np.exp(-np.logaddexp(0, x - x[:, None]))  # wins: p_ij
    weights = games * wins * wins.T
    surplus = scores * wins.T  # s_ij - n_ij p_ij = s_ij p_ji - s_ji p_ij, which avoids cancellation
    return (surplus - surplus.T).sum(1), np.diag(weights.sum(1)) - weights
