"""Checked options of Level-Based Foraging, its spaces, and lbforaging's task names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.errors import ConfigError, shown

SUM_OF_THREE = -1  # stands for the sum of the three lowest player levels, which are resampled in every episode
_NAME = re.compile(
    r"Foraging(?P<grid>-grid)?(-(?P<sight>\d+)s)?-(?P<rows>\d+)x(?P<columns>\d+)-(?P<players>\d+)p-(?P<food>\d+)f"
    r"(?P<coop>-coop)?(?P<ind>-ind)?(?P<pen>-pen)?-v3"
)


@dataclass(frozen=True, kw_only=True)
class ForagingTask:
    """Options of `lbforaging.foraging.ForagingEnv`, documented in `LevelBasedForaging`.

    Raises:
        ConfigError: If lbforaging could not start every episode with these options.
    """

    players: int = 2
    field_size: Sequence[int] = (8, 8)
    max_num_food: int = 2
    min_player_level: int | Sequence[int] = 1
    max_player_level: int | Sequence[int] = 2
    min_food_level: int | Sequence[int] = 1
    max_food_level: int | Sequence[int] | None = None
    sight: int | None = None
    max_episode_steps: int = 50
    force_coop: bool = False
    normalize_reward: bool = True
    grid_observation: bool = False
    observe_agent_levels: bool = True
    penalty: float = 0.0

    @classmethod
    def named(cls, name: str, **options: Any) -> ForagingTask:
        """Return the task that lbforaging registers as `name`, with some options overridden.

        Raises:
            ConfigError: If the name does not have the form used by lbforaging, or an option is invalid.
        """
        parts = _NAME.fullmatch(str(name))
        if parts is None:
            raise ConfigError(f"name must be a task name of lbforaging, such as 'Foraging-8x8-2p-3f-v3' or "
                              f"'Foraging-2s-8x8-2p-2f-coop-v3', got {shown(name)}")  # fmt: skip
        task = cls(
            players=int(parts["players"]),
            field_size=(int(parts["rows"]), int(parts["columns"])),
            max_num_food=int(parts["food"]),
            max_food_level=1 if parts["ind"] else None,
            sight=int(parts["sight"]) if parts["sight"] else None,
            force_coop=bool(parts["coop"]),
            grid_observation=bool(parts["grid"]),
            penalty=0.1 if parts["pen"] else 0.0,
        )
        return replace(task, **options)

    def __post_init__(self) -> None:
        if np.shape(self.field_size) != (2,) or min(self.field_size) < 3:
            raise ConfigError(f"field_size must be (rows, columns), each at least 3, got {shown(self.field_size)}")
        if min(self.players, self.max_num_food, self.max_episode_steps) < 1:
            raise ConfigError("players, max_num_food and max_episode_steps must be at least 1, got "
                              f"{self.players}, {self.max_num_food} and {self.max_episode_steps}")  # fmt: skip
        least_sight = 1 if self.grid_observation else 0
        if self.reach < least_sight:
            raise ConfigError(f"sight must be at least {least_sight}, or None for the whole field, got {self.sight}")
        if self.players > self.rows * self.columns:
            raise ConfigError(f"players must be at most the number of cells, {self.rows * self.columns}, got "
                              f"{self.players}")  # fmt: skip
        self._check_levels()
        across, down = (min(2 * self.reach, side - 1) for side in (self.columns, self.rows))
        if not self.grid_observation and (across >= self.rows or down >= self.columns):
            raise ConfigError(f"sight={self.sight} on a field of {self.rows} x {self.columns} leads to coordinates "
                              "outside lbforaging's observation space: use a square field, or a sight of at most "
                              f"{(min(self.rows, self.columns) - 1) // 2}")  # fmt: skip

    @property
    def rows(self) -> int:
        """Number of rows of the field."""
        return int(self.field_size[0])

    @property
    def columns(self) -> int:
        """Number of columns of the field."""
        return int(self.field_size[1])

    @property
    def reach(self) -> int:
        """Number of cells that an agent sees in each direction."""
        return int(max(self.field_size) if self.sight is None else self.sight)

    @property
    def player_levels(self) -> np.ndarray:
        """Pairs of lowest and highest levels, randomly assigned to the players in every episode, int64 [A, 2]."""
        return _ranges("player", self.min_player_level, self.max_player_level, self.players)

    @property
    def food_levels(self) -> np.ndarray:
        """Pairs of lowest and highest food levels, or SUM_OF_THREE, assigned like player levels, int64 [F, 2]."""
        highest = self.min_food_level if self.max_food_level is None else self.max_food_level
        levels = _ranges("food", self.min_food_level, highest, self.max_num_food)
        if self.max_food_level is None:
            levels[:, 1] = SUM_OF_THREE
        if self.force_coop:
            levels[:, 0] = levels[:, 1]
        return levels

    @property
    def most_food(self) -> int:
        """Highest level that food can have."""
        if self.max_food_level is None:
            return int(np.sort(self.player_levels[:, 1])[:3].sum())
        return int(self.food_levels[:, 1].max())

    @property
    def observation_space(self) -> gym.spaces.Box:
        """The space of lbforaging or, for grids, the space that lbforaging intends but fails to build."""
        most_of_players = self.player_levels[:, 1]
        most = self.most_food
        if self.grid_observation:
            of_players = most_of_players.max() if self.observe_agent_levels else 1
            high = np.ones((3, 2 * self.reach + 1, 2 * self.reach + 1), np.float32)
            high *= np.array([of_players, most, 1], np.float32)[:, None, None]
            return gym.spaces.Box(np.float32(0), high, dtype=np.float32)
        n_numbers = 3 if self.observe_agent_levels else 2  # numbers per player
        corner = [self.columns - 1, self.rows - 1]  # in the order used by lbforaging; see __post_init__
        low = [-1, -1, 0] * self.max_num_food + [-1, -1, 0][:n_numbers] * self.players
        top = [*corner, most] * self.max_num_food + [*corner, most_of_players.max()][:n_numbers] * self.players
        return gym.spaces.Box(np.array(low, np.float32), np.array(top, np.float32), dtype=np.float32)

    def _check_levels(self) -> None:
        lowest_levels, food_levels = self.player_levels[:, 0], self.food_levels
        weakest = np.sort(lowest_levels)[:3].sum()
        if (food_levels[:, 1] == SUM_OF_THREE).any() and food_levels[:, 0].max() > weakest:
            raise ConfigError(f"min_food_level must be at most {weakest}, the lowest possible sum of three player "
                              f"levels, unless max_food_level is set, got {self.min_food_level}")  # fmt: skip


def _ranges(what: str, lowest: Any, highest: Any, count: int) -> np.ndarray:
    """Return lowest and highest levels, int64 [count, 2]. Each bound is a list, or one number for all."""
    if any(np.shape(bound) not in ((), (count,)) for bound in (lowest, highest)):
        raise ConfigError(f"min_{what}_level and max_{what}_level must be a number or a list of length {count}, got "
                          f"{shown(lowest)} and {shown(highest)}")  # fmt: skip
    levels = np.stack([np.broadcast_to(bound, count) for bound in (lowest, highest)], axis=1).astype(np.int64)
    if levels.min() < 0 or (levels[:, 0] > levels[:, 1]).any():
        raise ConfigError(f"min_{what}_level must be at least 0 and at most max_{what}_level, got {shown(lowest)} and "
                          f"{shown(highest)}")  # fmt: skip
    return levels
