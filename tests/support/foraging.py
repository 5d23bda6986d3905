"""lbforaging's own environment beside the bundled batch, and players that load food."""

from unittest import mock

import gymnasium as gym
import numpy as np

from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.envs.lbforaging import LevelBasedForaging
from support.twins import Twins

NORTH, SOUTH, WEST, EAST, LOAD = range(1, 6)
DEFAULTS = {
    "players": 2,
    "min_player_level": 1,
    "max_player_level": 2,
    "min_food_level": 1,
    "max_food_level": None,
    "field_size": (8, 8),
    "max_num_food": 2,
    "sight": None,
    "max_episode_steps": 50,
    "force_coop": False,
}


def make_original(options):
    """The original with the batch's options, in its adapter; with grids, in the space that it means."""
    from lbforaging.foraging import ForagingEnv

    options = {**DEFAULTS, **options}
    if options["sight"] is None:
        options["sight"] = max(options["field_size"])
    box = gym.spaces.Box

    def box_of_bounds(low, high, shape, dtype):
        return box(low.astype(dtype), high.astype(dtype), dtype=dtype)

    with mock.patch.object(gym.spaces, "Box", box_of_bounds):  # the shape that grids get is refused
        env = ForagingEnv(**options)
    return as_multi_agent_env(env)


class ForagingTwins(Twins):
    """Also counts the reasons for rewards: `loads`, `joint_loads` of two players or more, `penalties`.

    Args:
        options: of the batch and the originals.
        num_envs: of each.
        rng: a generator, for the players that `forage()` moves.
        seed: of the batch.
    """

    def __init__(self, options, num_envs, rng, seed):
        self.rng = rng
        self.loads = self.joint_loads = self.penalties = 0
        originals = [make_original(options) for _ in range(num_envs)]
        super().__init__(LevelBasedForaging(num_envs, **options), originals, self.begin_like, seed)

    def begin_like(self, e, original, seed):
        """Put the batch's state into an original."""
        original.reset(seed=0)
        env = original.unwrapped
        env.field[...] = 0
        for row, column, level in self.batch.foods[e]:
            env.field[row, column] += level
        for player, (row, column, level) in zip(env.players, self.batch.players[e].tolist(), strict=True):
            player.setup((row, column), np.int64(level), env.field_size)
        env._food_spawned = env.field.sum()
        env._gen_valid_moves()
        assert self.batch.food_spawned[e] == env._food_spawned
        return dict(enumerate(env._make_gym_obs()))

    def step(self, actions):
        super().step(actions)
        rewards = self.out.groups["agents"].rewards
        n_rewarded = (rewards > 0).sum(axis=1)
        self.loads += (n_rewarded > 0).sum()
        self.joint_loads += (n_rewarded > 1).sum()
        self.penalties += (rewards < 0).sum()

    def forage(self, e, agent, obs):
        """Walk to food and load it, most of the time. All walk to the same, or each to another, by the env's number."""
        foods = [food for food in self.batch.foods[e].tolist() if food[2] > 0]
        if self.rng.random() < 0.25 or not foods:
            return int(self.rng.integers(6))
        to_row, to_column, _ = foods[agent * (e % 2) % len(foods)]
        row, column, _ = self.batch.players[e, agent].tolist()
        down, across = to_row - row, to_column - column
        if abs(down) + abs(across) == 1:
            return LOAD
        if abs(down) > abs(across) or (abs(down) == abs(across) and self.rng.random() < 0.5):
            return SOUTH if down > 0 else NORTH
        return EAST if across > 0 else WEST


def random_options(rng):
    """Options with which the original can begin every episode, all of them drawn."""
    options = {
        "players": int(rng.integers(1, 6)),
        "max_num_food": int(rng.integers(1, 6)),
        "max_episode_steps": int(rng.integers(5, 60)),
        "force_coop": bool(rng.random() < 0.4),
        "normalize_reward": bool(rng.random() < 0.6),
        "observe_agent_levels": bool(rng.random() < 0.7),
        "penalty": float(rng.choice([0.0, 0.1, 1 / 3])),
        "grid_observation": bool(rng.random() < 0.25),
    }
    rows, columns = rng.integers(3, 12, 2).tolist()
    if options["grid_observation"]:
        options["sight"] = int(rng.integers(1, 7))
    elif rng.random() < 0.4:
        options["sight"] = int(rng.integers(0, (min(rows, columns) - 1) // 2 + 1))
    else:
        columns = rows
        options["sight"] = None if rng.random() < 0.5 else int(rng.integers(0, 14))
    options["field_size"] = rows, columns
    options["min_player_level"], options["max_player_level"] = levels(rng, options["players"], 1, 5)
    if rng.random() < 0.5:
        options["min_food_level"], options["max_food_level"] = levels(rng, options["max_num_food"], 0, 9)
    return options


def levels(rng, count, lowest, highest):
    """Bounds for all or for each."""
    if rng.random() < 0.5:
        return tuple(sorted(rng.integers(lowest, highest + 1, 2).tolist()))
    bounds = np.sort(rng.integers(lowest, highest + 1, (count, 2)), axis=1)
    return bounds[:, 0].tolist(), bounds[:, 1].tolist()
