"""Games, payoffs and ratings of a tournament."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fastmarl.core.objects.public import public
from fastmarl.play.arena.ratings import bradley_terry
from fastmarl.report.plots import OURS, picture
from fastmarl.report.tables import Table

COLUMNS = {
    "name": ("", ""),
    "rating": ("rating", "+.0f"),
    "error": ("±", ".0f"),
    "payoff": ("mean payoff", "+.3f"),
    "games": ("games", ",d"),
    "wins": ("wins", ",d"),
    "draws": ("draws", ",d"),
    "losses": ("losses", ",d"),
}
MOST_LABELLED = 20  # maximum number of players for plots with numbers in cells
PAIR = ("player", "opponent", "games", "wins", "draws", "losses", "payoff", "payoff_standard_error", "rating",
        "rating_standard_error")  # fmt: skip


@public("fastmarl.play")
@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Tournament:
    """Games of P players, with statistics.

    In matrices [P, P], rows are players and columns their opponents, in the order of `names`. The diagonal is empty.

    Attributes:
        names: Names of the players.
        sides: The two sides.
        players: int64 [N, 2], indices of the players on the first and second side in each of the N games.
        payoffs: float64 [N, 2], recorded rewards summed over the agents of each side.
        lengths: int64 [N], number of env steps.
        reset_seeds: Reset seed of each game, or None if its environment received none.
        prior: Number of drawn games added to each pair for ratings.
    """

    names: tuple[str, ...]
    sides: tuple[object, object]
    players: np.ndarray
    payoffs: np.ndarray
    lengths: np.ndarray
    reset_seeds: tuple[int | None, ...]
    prior: float = 1.0

    @cached_property
    def games(self) -> np.ndarray:
        """int64 [P, P]: number of games of each pair, on both sides together."""
        return self._count(np.ones(len(self.players), bool))

    @cached_property
    def wins(self) -> np.ndarray:
        """int64 [P, P]: number of games in which the player had a higher payoff than its opponent."""
        return self._count(self.payoffs[:, 0] > self.payoffs[:, 1], self.payoffs[:, 1] > self.payoffs[:, 0])

    @cached_property
    def draws(self) -> np.ndarray:
        """int64 [P, P]: number of games with equal payoffs."""
        return self.games - self.wins - self.wins.T

    @cached_property
    def payoff_matrix(self) -> np.ndarray:
        """float64 [P, P]: payoff of the player, averaged over its means on both sides; NaN on the diagonal.

        In general-sum games, the payoff of the opponent is the transposed entry.
        """
        with np.errstate(invalid="ignore"):
            return self._moments[0].mean(0)

    @cached_property
    def payoff_standard_errors(self) -> np.ndarray:
        """float64 [P, P]: standard errors of `payoff_matrix`, with the sides as strata of equal weight.

        This is the square root of a quarter of the sum of squared standard errors of both sides (Cochran, "Sampling
        techniques", 3rd edition, 1977, chapter 5). It is NaN on the diagonal and for a single game on a side, and 0 if
        all games on a side had the same payoff, as with greedy policies in a deterministic environment.
        """
        return np.sqrt(self._moments[1].sum(0)) / 2

    @cached_property
    def ratings(self) -> np.ndarray:
        """float64 [P]: ratings on the Elo scale, which sum to 0. See `bradley_terry`."""
        return self._rated[0]

    @cached_property
    def rating_standard_errors(self) -> np.ndarray:
        """float64 [P]: standard errors of `ratings` relative to the mean of all players."""
        return self._rated[1]

    def ranking(self) -> list[str]:
        """Return the names, ordered from the best rating to the worst."""
        return [self.names[i] for i in self._order()]

    def __str__(self) -> str:
        """Return the table as plain text."""
        return self.table().as_text()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {list(self.names)}: {len(self.players):,} games>"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def table(self, title: str = "") -> Table:
        """Return a table titled `title`, with one row per player, the best first."""
        games, wins, draws = self.games.sum(1), self.wins.sum(1), self.draws.sum(1)
        figures = [
            {
                "name": self.names[i],
                "rating": self.ratings[i],
                "error": self.rating_standard_errors[i],
                "payoff": np.nanmean(self.payoff_matrix[i]),
                "games": int(games[i]),
                "wins": int(wins[i]),
                "draws": int(draws[i]),
                "losses": int(games[i] - wins[i] - draws[i]),
            }
            for i in self._order()
        ]
        return Table.of(title, COLUMNS, figures, ["±: standard error of the rating"])

    def to_csv(self, path: str | Path) -> None:
        """Write a CSV file to `path`, with one row per player and opponent that includes the rating of the player."""
        losses = self.games - self.wins - self.draws
        with Path(path).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(PAIR)
            for i, j in np.argwhere(self.games):
                counts = [int(each[i, j]) for each in (self.games, self.wins, self.draws, losses)]
                payoff = float(self.payoff_matrix[i, j]), float(self.payoff_standard_errors[i, j])
                rating = float(self.ratings[i]), float(self.rating_standard_errors[i])
                writer.writerow([self.names[i], self.names[j], *counts, *payoff, *rating])

    def plot(self, path: str | Path) -> None:
        """Plot the payoff matrix, and the ratings with bars of ± 2 standard errors, with the best player on top.

        Requires matplotlib. The suffix of `path` selects the format: .png, .pdf or .svg.
        """
        order, names = self._order(), self.ranking()
        places, size = range(len(names)), max(3.0, 0.35 * len(names) + 1.5)
        with picture(Path(path), width=2 * size + 1, height=size) as figure:
            left, right = figure.subplots(1, 2)
            _draw_payoffs(figure, left, names, self.payoff_matrix[np.ix_(order, order)])
            errors = 2 * self.rating_standard_errors[order]
            right.errorbar(self.ratings[order], places, xerr=errors, fmt="o", color=OURS, capsize=3)
            right.set_yticks(places, names, parse_math=False)
            right.invert_yaxis()
            right.axvline(0, color="#9e9e9e", linewidth=1, zorder=0)
            right.set_xlabel("rating (Elo), ± 2 standard errors")

    def _order(self) -> Sequence[int]:
        return np.argsort(-self.ratings, kind="stable").tolist()

    @cached_property
    def _rated(self) -> tuple[np.ndarray, np.ndarray]:
        return bradley_terry(self.wins + self.draws / 2, prior=self.prior)

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (mean payoffs, squared standard errors) per side, player and opponent, each float64 [2, P, P]."""
        means, squares = np.zeros((2, *self.games.shape)), np.zeros((2, *self.games.shape))
        with np.errstate(invalid="ignore", divide="ignore"):
            for side in (0, 1):
                place = self.players[:, side], self.players[:, 1 - side]
                n = np.zeros(self.games.shape)
                np.add.at(n, place, 1)
                np.add.at(means[side], place, self.payoffs[:, side])
                means[side] /= n
                np.add.at(squares[side], place, (self.payoffs[:, side] - means[side][place]) ** 2)
                squares[side] /= n * (n - 1)
        return means, squares

    def _count(self, of_first: np.ndarray, of_second: np.ndarray | None = None) -> np.ndarray:
        """Return the number of games in which the player meets a condition against its opponent, int64 [P, P].

        Args:
            of_first: bool [N], True if the condition holds for the player on the first side.
            of_second: bool [N], the same for the second side; None if equal to `of_first`.
        """
        counts = np.zeros((len(self.names),) * 2, np.int64)
        np.add.at(counts, (self.players[:, 0], self.players[:, 1]), of_first)
        np.add.at(counts, (self.players[:, 1], self.players[:, 0]), of_first if of_second is None else of_second)
        return counts


def _draw_payoffs(figure: Any, axes: Any, names: Sequence[str], payoffs: np.ndarray) -> None:
    """Plot payoffs [P, P] as a heat map."""
    most = np.nanmax(np.abs(payoffs)) or 1.0
    image = axes.imshow(payoffs, cmap="RdBu", vmin=-most, vmax=most)
    places = range(len(names))
    axes.set_xticks(places, names, rotation=90, parse_math=False)
    axes.set_yticks(places, names, parse_math=False)
    axes.set_title("mean payoff of row against column", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8)
    for i in places if len(names) <= MOST_LABELLED else ():
        for j in places:
            if np.isfinite(payoffs[i, j]):
                is_dark = abs(payoffs[i, j]) > 0.6 * most
                color = "white" if is_dark else "black"
                axes.text(j, i, f"{payoffs[i, j]:.2g}", ha="center", va="center", fontsize=7, color=color)
