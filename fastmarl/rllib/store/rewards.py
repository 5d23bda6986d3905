"""Rewards as RLlib adds them up: objects of the types that the env gave them."""

from typing import Any

import numpy as np

from fastmarl.core.native._rllib_scatter import as_object
from fastmarl.rllib.episodes.lists import stacked
from fastmarl.rllib.store.block import INT, OTHER, PYTHON_FLOAT, RLlibBlock
from fastmarl.rllib.store.store import RLlibStore

FLOAT32 = 2


def rewards_of(store: RLlibStore, lane: int) -> list[Any]:
    """Those of a lane's completed steps in this chunk and its lookback, as RLlib's loop has them."""
    table = store.table
    block, end_env_t = store.blocks[table.module_L[lane]], int(table.end_env_t_L[lane])
    rows = store.rows_of(lane)
    acted = rows if table.final_L[lane] >= 0 else rows[:-1]
    rewards, kinds = block.reward_R[acted], block.kind_R[acted]
    if (kinds <= PYTHON_FLOAT).all():
        return rewards.tolist()
    return reward_objects(block, rows, rewards, kinds, end_env_t)


def reward_array(
    block: RLlibBlock, rows: np.ndarray, rewards: np.ndarray, kinds: np.ndarray, end_env_t: int
) -> np.ndarray:
    """Rewards as NumPy makes an array of the env's own objects."""
    if (kinds == FLOAT32).all():
        return rewards.astype(np.float32)
    return stacked(reward_objects(block, rows, rewards, kinds, end_env_t))


def reward_objects(
    block: RLlibBlock, rows: np.ndarray, rewards: np.ndarray, kinds: np.ndarray, end_env_t: int
) -> list[Any]:
    """Rewards as RLlib adds them up, of the types that the env gave them."""
    env_ts = block.env_t_R[rows].tolist()
    following = [*env_ts[1:], end_env_t]
    objects: list[Any] = []
    for row, reward, kind, since, until in zip(
        rows.tolist(), rewards.tolist(), kinds.tolist(), env_ts, following, strict=False
    ):
        terms = until - since  # env steps in which it may have been paid; zeros are Python floats
        if kind == OTHER:
            value, n = block.others[row]
            objects.append(value if n == terms else value + 0.0)
        elif kind >= INT and kind - INT + 1 < terms:
            objects.append(reward)
        else:
            objects.append(as_object(reward, kind))
    return objects
