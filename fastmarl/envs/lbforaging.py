"""Level-Based Foraging, in which agents load food together, like `lbforaging`'s `Foraging-8x8-2p-2f-coop-v3`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numba import njit

from fastmarl.core.envs.arrays import StepArrays
from fastmarl.core.objects.public import public
from fastmarl.envs.foraging_task import SUM_OF_THREE, ForagingTask
from fastmarl.envs.own_arrays import ANY, COUNT, EnvOfArrays
from fastmarl.envs.streams import below, new_streams, seed_streams

NONE, NORTH, SOUTH, WEST, EAST, LOAD = range(6)
N_ACTIONS = 6
MOST_DRAWS = 1000  # attempts to find cells for food; food without a cell by then is left out
ROW, COLUMN, LEVEL = range(3)  # attributes of a player, and of food


@public("fastmarl.envs")
class LevelBasedForaging(EnvOfArrays):
    """Agents walk on a field and load adjacent food if their levels sum to at least the level of the food.

    Rules, spaces and terminations match `lbforaging.foraging.ForagingEnv` 2.0.0, as presented by the adapter for Tuple
    spaces: agents are 0, 1, ..., and an episode terminates when all food is loaded or after `max_episode_steps`. The
    same state and actions yield bit-identical observations and rewards. There are three differences:

    - Every episode starts like the first one in lbforaging. In later episodes, lbforaging places no player on a cell
      where a player who is yet to be placed stood at the end of the previous episode.
    - lbforaging fails after sampling 1,000 occupied cells for a player; here sampling continues.
    - Grid observations match the original code, which declares a space that Gymnasium rejects.

    Rendering is not supported.

    Args:
        num_envs: Number of copies in the batch, E.
        name: A task name of lbforaging, such as "Foraging-8x8-2p-2f-coop-v3", or another name of this form: "-2s" sets
            the sight, "-grid" selects grid observations, "-ind" sets `max_food_level=1`, "-pen" sets `penalty=0.1`. The
            name determines the defaults of the options.
        options: Options of lbforaging, listed with the defaults used if `name` is None:

            - `players=2`, `max_num_food=2`; there is less food if no cell is left away from the border and other food.
            - `field_size=(8, 8)`: rows and columns.
            - `min_player_level=1`, `max_player_level=2`, `min_food_level=1`, `max_food_level=None`: one number for all,
              or a list with one per player or food, randomly reassigned in every episode. None is the sum of the three
              lowest player levels.
            - `force_coop=False`: whether all food has its highest level.
            - `sight=None`: number of cells that agents see in each direction; None is the entire field.
            - `max_episode_steps=50`.
            - `normalize_reward=True`: whether the rewards for all food of an episode sum to 1 over all agents; if not,
              they are products of levels. Loading agents share a reward in proportion to their levels.
            - `penalty=0.0`: subtracted from the reward of agents that try to load but are too weak.
            - `observe_agent_levels=True`.
            - `grid_observation=False`: whether an observation is three layers around the agent: levels of players,
              levels of food, free cells. If not, it lists row, column and level of each food, then of each player,
              starting with the agent itself.

    Attributes:
        players: int32 [E, A, 3]: row, column, level. Writable.
        foods: int32 [E, F, 3]: the same for food, in cell order; loaded food has level 0.
        food_spawned: int64 [E], the sum of food levels at the start of the episode.

    Raises:
        ConfigError: If the name is unknown, or lbforaging could not start every episode with these options.
        TypeError: If an option is unknown.
    """

    def __init__(self, num_envs: int, name: str | None = None, **options: Any):
        task = ForagingTask(**options) if name is None else ForagingTask.named(name, **options)
        super().__init__(
            num_envs,
            {"agents": range(task.players)},
            {"agents": task.observation_space},
            {"agents": gym.spaces.Discrete(N_ACTIONS)},
        )
        self.players = np.zeros((num_envs, task.players, 3), np.int32)
        self.foods = np.zeros((num_envs, task.max_num_food, 3), np.int32)
        self.food_spawned = np.zeros(num_envs, np.int64)
        self._t = np.zeros(num_envs, np.int64)
        self._streams = new_streams(num_envs)
        self._target = np.zeros((task.players, 2), np.int32)  # target cells of players in the env being stepped
        self._levels = task.player_levels, task.food_levels
        self._field_size = task.rows, task.columns
        self._view = task.reach, bool(task.observe_agent_levels)
        corner, most = (task.rows - 1, task.columns - 1), task.most_food
        self.state_arrays = {
            "players": (0, (*corner, task.player_levels.max())), "foods": (0, (*corner, most)),
            "food_spawned": (0, most * task.max_num_food), "_t": COUNT, "_streams": ANY,
        }  # fmt: skip
        self._rules = int(task.max_episode_steps), bool(task.normalize_reward), float(task.penalty)

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        seed_streams(self._streams, env_indices, seeds)
        _reset(
            env_indices, self._streams, *self._levels, self._field_size, self._view, self.players, self.foods,
            self.food_spawned, self._t, out.groups["agents"].obs,
        )  # fmt: skip

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        group = out.groups["agents"]
        _step(
            actions["agents"], self._field_size, self._view, self._rules, self._target, self.players, self.foods,
            self.food_spawned, self._t, group.obs, group.rewards, out.terminated,
        )  # fmt: skip

    def _rules_of(self, state: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
        is_left_E = (state["foods"][..., LEVEL] > 0).any(1)
        yield "there is food but food_spawned is 0", is_left_E & (state["food_spawned"] == 0)


@njit(cache=True, nogil=True)
def _reset(
    env_indices, streams_E, player_levels_A2, food_levels_F2, field_size, view, player_EA3, food_EF3, spawned_E, t_E,
    obs,
):  # fmt: skip
    for e in env_indices:
        t_E[e] = 0
        _draw_levels(e, streams_E, player_levels_A2, 0, player_EA3)
        _place_players(e, streams_E, field_size, player_EA3)
        _draw_levels(e, streams_E, food_levels_F2, _sum_of_three(e, player_EA3), food_EF3)
        _place_food(e, streams_E, field_size, player_EA3, food_EF3)
        spawned_E[e] = 0
        for f in range(food_EF3.shape[1]):
            spawned_E[e] += food_EF3[e, f, LEVEL]
        _observe(e, field_size, view, player_EA3, food_EF3, obs)


@njit(cache=True, nogil=True)
def _draw_levels(e, streams_E, levels_X2, sum_of_three, thing_EX3):
    """Randomly assign the level ranges to the players or food of env e, and sample a level from each range."""
    for x in range(len(levels_X2)):
        thing_EX3[e, x, LEVEL] = x
    for x in range(len(levels_X2) - 1, 0, -1):
        other = below(streams_E, e, x + 1)
        held = thing_EX3[e, x, LEVEL]
        thing_EX3[e, x, LEVEL] = thing_EX3[e, other, LEVEL]
        thing_EX3[e, other, LEVEL] = held
    for x in range(len(levels_X2)):
        dealt = thing_EX3[e, x, LEVEL]
        lowest, highest = levels_X2[dealt, 0], levels_X2[dealt, 1]
        lowest = sum_of_three if lowest == SUM_OF_THREE else lowest
        highest = sum_of_three if highest == SUM_OF_THREE else highest
        thing_EX3[e, x, LEVEL] = lowest + below(streams_E, e, highest - lowest + 1)


@njit(cache=True, nogil=True)
def _sum_of_three(e, player_EA3):
    """Return the sum of the three lowest player levels in env e, or of all levels if there are fewer."""
    total = 0
    for a in range(player_EA3.shape[1]):
        level, n_lower = player_EA3[e, a, LEVEL], 0
        for b in range(player_EA3.shape[1]):
            other = player_EA3[e, b, LEVEL]
            n_lower += other < level or (other == level and b < a)
        total += level if n_lower < 3 else 0
    return total


@njit(cache=True, nogil=True)
def _place_players(e, streams_E, field_size, player_EA3):
    """Place each player on a separate cell."""
    for a in range(player_EA3.shape[1]):
        row, column = below(streams_E, e, field_size[0]), below(streams_E, e, field_size[1])
        while _is_among(e, row, column, a, player_EA3):
            row, column = below(streams_E, e, field_size[0]), below(streams_E, e, field_size[1])
        player_EA3[e, a, ROW], player_EA3[e, a, COLUMN] = row, column


@njit(cache=True, nogil=True)
def _place_food(e, streams_E, field_size, player_EA3, food_EF3):
    """Place as much food as fits away from the border, players and other food, and sort it by cell."""
    n_food, placed = food_EF3.shape[1], 0
    for _ in range(MOST_DRAWS):
        if placed == n_food:
            break
        row, column = 1 + below(streams_E, e, field_size[0] - 2), 1 + below(streams_E, e, field_size[1] - 2)
        if _is_among(e, row, column, player_EA3.shape[1], player_EA3) or _is_near(e, row, column, placed, food_EF3):
            continue
        food_EF3[e, placed, ROW], food_EF3[e, placed, COLUMN] = row, column
        placed += 1
    for f in range(placed, n_food):
        food_EF3[e, f] = 0
    for f in range(1, n_food):
        while f > 0 and _cell(e, f, field_size, food_EF3) < _cell(e, f - 1, field_size, food_EF3):
            for i in range(3):
                held = food_EF3[e, f, i]
                food_EF3[e, f, i] = food_EF3[e, f - 1, i]
                food_EF3[e, f - 1, i] = held
            f -= 1


@njit(cache=True, nogil=True)
def _cell(e, f, field_size, food_EF3):
    return food_EF3[e, f, ROW] * field_size[1] + food_EF3[e, f, COLUMN]


@njit(cache=True, nogil=True)
def _is_among(e, row, column, n_players, player_EA3):
    """Return whether one of the first `n_players` players of env e is on this cell."""
    is_among = False
    for a in range(n_players):
        is_among |= player_EA3[e, a, ROW] == row and player_EA3[e, a, COLUMN] == column
    return is_among


@njit(cache=True, nogil=True)
def _is_near(e, row, column, n_food, food_EF3):
    """Return whether one of the first `n_food` foods is within one cell in any direction, or two in a straight line."""
    is_near = False
    for f in range(n_food):
        down, across = abs(food_EF3[e, f, ROW] - row), abs(food_EF3[e, f, COLUMN] - column)
        is_near |= food_EF3[e, f, LEVEL] > 0 and max(down, across) <= (2 if min(down, across) == 0 else 1)
    return is_near


@njit(cache=True, nogil=True)
def _step(
    action_EA, field_size, view, rules, target_A2, player_EA3, food_EF3, spawned_E, t_E, obs, reward_EA,
    terminated_E,
):  # fmt: skip
    """Step all envs.

    Args:
        action_EA: int64.
        target_A2: Scratch space for the target cells of the players in a single env.
        obs: float32 [E, A, K], or [E, A, 3, rows, columns] for grids.
        obs, reward_EA, terminated_E: Output arrays of the caller, with rewards initially 0. The other arrays belong to
            the batch.
    """
    max_steps, normalizes, penalty = rules
    for e in range(len(t_E)):
        _move(e, action_EA, field_size, target_A2, player_EA3, food_EF3)
        is_left = _load(e, action_EA, normalizes, penalty, player_EA3, food_EF3, spawned_E, reward_EA)
        _observe(e, field_size, view, player_EA3, food_EF3, obs)
        t_E[e] += 1
        terminated_E[e] = not is_left or t_E[e] >= max_steps


@njit(cache=True, nogil=True)
def _move(e, action_EA, field_size, target_A2, player_EA3, food_EF3):
    """Move the players of env e, except players with the same target, who all stay.

    A player may enter a cell whose occupant tries to leave but has to stay.
    """
    n_players = player_EA3.shape[1]
    for a in range(n_players):
        action = action_EA[e, a]
        row = player_EA3[e, a, ROW] + (action == SOUTH) - (action == NORTH)
        column = player_EA3[e, a, COLUMN] + (action == EAST) - (action == WEST)
        is_free = 0 <= row < field_size[0] and 0 <= column < field_size[1]
        for f in range(food_EF3.shape[1]):
            is_here = food_EF3[e, f, ROW] == row and food_EF3[e, f, COLUMN] == column
            is_free &= not (is_here and food_EF3[e, f, LEVEL] > 0)
        target_A2[a, 0] = row if is_free else player_EA3[e, a, ROW]
        target_A2[a, 1] = column if is_free else player_EA3[e, a, COLUMN]
    for a in range(n_players):
        is_alone = True
        for b in range(n_players):
            meets = target_A2[a, 0] == target_A2[b, 0] and target_A2[a, 1] == target_A2[b, 1]
            is_alone &= a == b or not meets
        if is_alone:
            player_EA3[e, a, ROW], player_EA3[e, a, COLUMN] = target_A2[a, 0], target_A2[a, 1]


@njit(cache=True, nogil=True)
def _load(e, action_EA, normalizes, penalty, player_EA3, food_EF3, spawned_E, reward_EA):
    """Load the food of env e, write rewards, and return whether any food is left.

    No cell is adjacent to two foods (see `_is_near`), so an agent loads at most one, and the order of agents, a set in
    lbforaging, does not matter.
    """
    is_left = False
    for f in range(food_EF3.shape[1]):
        food = np.int64(food_EF3[e, f, LEVEL])
        if food == 0:
            continue
        strength = np.int64(0)
        for a in range(player_EA3.shape[1]):
            if _loads(e, a, f, action_EA, player_EA3, food_EF3):
                strength += player_EA3[e, a, LEVEL]
        for a in range(player_EA3.shape[1]):
            if not _loads(e, a, f, action_EA, player_EA3, food_EF3):
                continue
            if strength < food:
                reward_EA[e, a] -= penalty
            else:
                share = float(player_EA3[e, a, LEVEL] * food)
                reward_EA[e, a] = share / float(strength * spawned_E[e]) if normalizes else share
        if strength < food:
            is_left = True
        else:
            food_EF3[e, f, LEVEL] = 0
    return is_left


@njit(cache=True, nogil=True)
def _loads(e, a, f, action_EA, player_EA3, food_EF3):
    """Return whether the agent tries to load this food."""
    down = abs(player_EA3[e, a, ROW] - food_EF3[e, f, ROW])
    across = abs(player_EA3[e, a, COLUMN] - food_EF3[e, f, COLUMN])
    return action_EA[e, a] == LOAD and down + across == 1


@njit(cache=True, nogil=True)
def _observe(e, field_size, view, player_EA3, food_EF3, obs):
    for a in range(player_EA3.shape[1]):
        if obs.ndim == 3:  # resolved at compile time
            _see(e, a, view, player_EA3, food_EF3, obs)
        else:
            _see_layers(e, a, field_size, view, player_EA3, food_EF3, obs)


@njit(cache=True, nogil=True)
def _see(e, a, view, player_EA3, food_EF3, obs_EAK):
    """Write food and players in sight, relative to the upper left corner of the view and padded with -1, -1, 0.

    Near the upper and left borders, players are visible at a greater distance than food, as in lbforaging.
    """
    sight, shows_levels = view
    n_food, n_players, n_numbers = food_EF3.shape[1], player_EA3.shape[1], 2 + shows_levels
    here_row, here_column = player_EA3[e, a, ROW], player_EA3[e, a, COLUMN]
    top, left = max(here_row - sight, 0), max(here_column - sight, 0)
    k = 0
    for f in range(n_food):
        row, column, level = food_EF3[e, f, ROW], food_EF3[e, f, COLUMN], food_EF3[e, f, LEVEL]
        if level > 0 and max(abs(row - here_row), abs(column - here_column)) <= sight:
            obs_EAK[e, a, k], obs_EAK[e, a, k + 1], obs_EAK[e, a, k + 2] = row - top, column - left, level
            k += 3
    while k < 3 * n_food:
        obs_EAK[e, a, k], obs_EAK[e, a, k + 1], obs_EAK[e, a, k + 2] = -1.0, -1.0, 0.0
        k += 3
    for i in range(n_players):
        b = a if i == 0 else i - (i <= a)  # the agent itself, then the others in order
        row, column = player_EA3[e, b, ROW] - top, player_EA3[e, b, COLUMN] - left
        if min(row, column) >= 0 and max(row, column) <= 2 * sight:
            obs_EAK[e, a, k], obs_EAK[e, a, k + 1] = row, column
            if shows_levels:
                obs_EAK[e, a, k + 2] = player_EA3[e, b, LEVEL]
            k += n_numbers
    while k < obs_EAK.shape[2]:
        obs_EAK[e, a, k], obs_EAK[e, a, k + 1] = -1.0, -1.0
        if shows_levels:
            obs_EAK[e, a, k + 2] = 0.0
        k += n_numbers


@njit(cache=True, nogil=True)
def _see_layers(e, a, field_size, view, player_EA3, food_EF3, obs_EA3YX):
    """Write the levels of players, the levels of food, and free cells, with the agent in the middle."""
    sight, shows_levels = view
    top, left = player_EA3[e, a, ROW] - sight, player_EA3[e, a, COLUMN] - sight
    width = 2 * sight + 1
    for y in range(width):
        for x in range(width):
            obs_EA3YX[e, a, 0, y, x] = obs_EA3YX[e, a, 1, y, x] = 0.0
            obs_EA3YX[e, a, 2, y, x] = 0 <= top + y < field_size[0] and 0 <= left + x < field_size[1]
    for f in range(food_EF3.shape[1]):
        y, x = food_EF3[e, f, ROW] - top, food_EF3[e, f, COLUMN] - left
        if food_EF3[e, f, LEVEL] > 0 and min(y, x) >= 0 and max(y, x) < width:
            obs_EA3YX[e, a, 1, y, x], obs_EA3YX[e, a, 2, y, x] = food_EF3[e, f, LEVEL], 0.0
    for b in range(player_EA3.shape[1]):
        y, x = player_EA3[e, b, ROW] - top, player_EA3[e, b, COLUMN] - left
        if min(y, x) >= 0 and max(y, x) < width:
            obs_EA3YX[e, a, 0, y, x] = player_EA3[e, b, LEVEL] if shows_levels else 1
            obs_EA3YX[e, a, 2, y, x] = 0.0
