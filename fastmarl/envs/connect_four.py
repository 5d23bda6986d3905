"""The board game connect four, like `pettingzoo.classic.connect_four_v3`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numba import njit

from fastmarl.core.envs.arrays import StepArrays
from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.envs.own_arrays import ANY, EnvOfArrays
from fastmarl.envs.streams import below, new_streams, seed_streams

ROWS, COLUMNS, IN_A_ROW = 6, 7, 4
EMPTY = -1
MOST_RANDOM_MOVES = 20  # with this many random moves, about half of the games have no winner yet


@public("fastmarl.envs")
class ConnectFour(EnvOfArrays):
    """Two players alternately drop stones into columns; the first with four in a row, in any direction, wins.

    Observations, masks, order of play, rewards and terminations match `pettingzoo.classic.connect_four_v3`: the winner
    receives 1 and the loser -1; a full board is a tie. Only the player to move is present, except at the end, when both
    are. A player that chooses a full column receives -1 and ends the game, which is terminated but not truncated.

    An observation is a Dict: "observation" int8 [6, 7, 2], with rows from the top, marks stones of the player in the
    first plane and stones of the opponent in the second; "action_mask" int8 [7] is 0 for full columns.

    Args:
        num_envs: Number of copies in the batch, E.
        random_moves: Maximum number of random opening moves. Each episode samples their number and the moves uniformly,
            without a win among them, so that players see positions other than their preferred ones. With 0, as in
            PettingZoo, episodes start on an empty board.

    Attributes:
        boards: int8 [E, 6, 7], the player whose stone is on each cell (0 or 1), or -1.

    Raises:
        ConfigError: If `random_moves` is not between 0 and 20.
    """

    def __init__(self, num_envs: int, random_moves: int = 0):
        if not 0 <= random_moves <= MOST_RANDOM_MOVES:
            raise ConfigError(f"random_moves must be between 0 and {MOST_RANDOM_MOVES}, got {random_moves}")
        observation_space = gym.spaces.Dict(
            {
                "observation": gym.spaces.Box(0, 1, (ROWS, COLUMNS, 2), np.int8),
                "action_mask": gym.spaces.Box(0, 1, (COLUMNS,), np.int8),
            }
        )
        players = {"players": ["player_0", "player_1"]}
        super().__init__(num_envs, players, {"players": observation_space}, {"players": gym.spaces.Discrete(COLUMNS)})
        self.boards = np.full((num_envs, ROWS, COLUMNS), EMPTY, np.int8)
        self._n_stones = np.zeros(num_envs, np.int64)
        self._random_moves, self._streams = random_moves, new_streams(num_envs)
        self.state_arrays = {"boards": (EMPTY, 1), "_n_stones": (0, ROWS * COLUMNS), "_streams": ANY}

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        seed_streams(self._streams, env_indices, seeds)
        group = out.groups["players"]
        _reset(
            env_indices, self._streams, self._random_moves, self.boards, self._n_stones, group.obs["observation"],
            group.obs["action_mask"], group.present,
        )  # fmt: skip

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        group = out.groups["players"]
        _step(
            actions["players"], self.boards, self._n_stones, group.obs["observation"], group.obs["action_mask"],
            group.rewards, group.present, out.terminated,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _reset(env_indices, streams_E, random_moves, board_ERC, n_stones_E, seen_EPRC2, mask_EPC, present_EP):
    for e in env_indices:
        n_stones_E[e] = below(streams_E, e, random_moves + 1)
        while not _opens(e, streams_E, board_ERC, n_stones_E):
            pass
        player = n_stones_E[e] % 2
        present_EP[e, 1 - player] = False
        _observe(e, player, board_ERC, seen_EPRC2, mask_EPC)


@njit(cache=True, nogil=True)
def _opens(e, streams_E, board_ERC, n_stones_E):
    """Make random moves on an empty board and return whether all were legal and none won."""
    board_ERC[e] = EMPTY
    for k in range(n_stones_E[e]):
        column = below(streams_E, e, COLUMNS)
        row = _drop(e, k % 2, column, board_ERC)
        if row < 0 or _wins(e, row, column, board_ERC):
            return False
    return True


@njit(cache=True, nogil=True)
def _step(action_EP, board_ERC, n_stones_E, seen_EPRC2, mask_EPC, reward_EP, present_EP, terminated_E):
    """Step all envs. The caller allocates the last five arrays and sets rewards to 0."""
    for e in range(len(n_stones_E)):
        player = n_stones_E[e] % 2
        other = 1 - player
        row = _drop(e, player, action_EP[e, player], board_ERC)
        n_stones_E[e] += 1
        if row < 0:
            reward_EP[e, player] = -1.0
            terminated_E[e] = True
        elif _wins(e, row, action_EP[e, player], board_ERC):
            reward_EP[e, player], reward_EP[e, other] = 1.0, -1.0
            terminated_E[e] = True
        else:
            terminated_E[e] = n_stones_E[e] == ROWS * COLUMNS
        present_EP[e, player], present_EP[e, other] = terminated_E[e], True
        _observe(e, other, board_ERC, seen_EPRC2, mask_EPC)
        if terminated_E[e]:
            _observe(e, player, board_ERC, seen_EPRC2, mask_EPC)


@njit(cache=True, nogil=True)
def _drop(e, player, column, board_ERC):
    """Drop a stone and return its row, or -1 if the column is full."""
    row = ROWS - 1
    while row >= 0 and board_ERC[e, row, column] != EMPTY:
        row -= 1
    if row >= 0:
        board_ERC[e, row, column] = player
    return row


@njit(cache=True, nogil=True)
def _wins(e, row, column, board_ERC):
    """Return whether the stone on this cell is one of four in a row."""
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        n = 1
        for sign in (-1, 1):
            r, c = row + sign * down, column + sign * right
            while 0 <= r < ROWS and 0 <= c < COLUMNS and board_ERC[e, r, c] == board_ERC[e, row, column]:
                n += 1
                r, c = r + sign * down, c + sign * right
        if n >= IN_A_ROW:
            return True
    return False


@njit(cache=True, nogil=True)
def _observe(e, player, board_ERC, seen_EPRC2, mask_EPC):
    for r in range(ROWS):
        for c in range(COLUMNS):
            seen_EPRC2[e, player, r, c, 0] = board_ERC[e, r, c] == player
            seen_EPRC2[e, player, r, c, 1] = board_ERC[e, r, c] == 1 - player
    for c in range(COLUMNS):
        mask_EPC[e, player, c] = board_ERC[e, 0, c] == EMPTY
