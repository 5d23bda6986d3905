"""Rewards and actions of a lane as in the RLlib loop: objects of the types returned by envs and modules."""

from typing import Any

import numpy as np

from fastmarl.core.native._rllib_scatter import as_object
from fastmarl.rllib.episodes.lists import items_of, stacked
from fastmarl.rllib.episodes.sample_block import nested_outputs
from fastmarl.rllib.store.block import INT, OTHER, PYTHON_FLOAT, RLlibBlock
from fastmarl.rllib.store.mixed_outputs import as_nested
from fastmarl.rllib.store.store import RLlibStore

FLOAT32 = 2


def rewards_of(store: RLlibStore, lane: int) -> list[Any]:
    """Return the rewards of the completed steps of a lane in this chunk and its lookback."""
    table = store.table
    block, end_env_t = store.blocks[table.module_L[lane]], int(table.end_env_t_L[lane])
    rows = store.rows_of(lane)
    acted = rows if table.final_L[lane] >= 0 else rows[:-1]
    rewards, kinds = block.reward_R[acted], block.kind_R[acted]
    if (kinds <= PYTHON_FLOAT).all():
        return rewards.tolist()
    return reward_objects(block, rows, rewards, kinds, end_env_t)


def last_reward_of(store: RLlibStore, lane: int) -> list[Any]:
    """Return a list with the reward of the last completed step of a lane; empty if there is none."""
    table = store.table
    block, row = store.blocks[table.module_L[lane]], int(table.row_L[lane])
    if table.final_L[lane] < 0:
        row = int(block.prev_R[row])
    if row >= 0 and block.kind_R[row] <= PYTHON_FLOAT:
        return [float(block.reward_R[row])]
    return rewards_of(store, lane)[-1:]


def actions_of(store: RLlibStore, lane: int) -> list[Any] | None:
    """Return the actions of the same steps as `rewards_of()`, or None if only the full episode has them."""
    block, rows = store.blocks[store.table.module_L[lane]], store.rows_of(lane)
    if store.table.final_L[lane] < 0:
        rows = rows[:-1]  # the step of the last row is not complete yet
    if block.former or not len(rows):
        return None
    actions, _ = nested_outputs({key: column[rows] for key, column in block.outputs.items()}, None)
    return None if actions is None else items_of(actions, block.type_of_scalars("actions"))


def last_action_of(store: RLlibStore, lane: int) -> list[Any]:
    """Return a list with the action of the last completed step of a lane; empty if there is none."""
    table = store.table
    block, row = store.blocks[table.module_L[lane]], int(table.row_L[lane])
    if table.final_L[lane] < 0:
        row = int(block.prev_R[row])
    return [as_nested(block.acted_with(row))[0]] if row >= 0 else []


def reward_array(
    block: RLlibBlock, rows: np.ndarray, rewards: np.ndarray, kinds: np.ndarray, end_env_t: int
) -> np.ndarray:
    """Return rewards as the array that NumPy would create from the objects sent by the env."""
    if (kinds == FLOAT32).all():
        return rewards.astype(np.float32)
    return stacked(reward_objects(block, rows, rewards, kinds, end_env_t))


def reward_objects(
    block: RLlibBlock, rows: np.ndarray, rewards: np.ndarray, kinds: np.ndarray, end_env_t: int
) -> list[Any]:
    """Return rewards with the types that result when RLlib adds up the objects sent by the env."""
    env_ts = block.env_t_R[rows].tolist()
    following = [*env_ts[1:], end_env_t]
    objects: list[Any] = []
    for row, reward, kind, since, until in zip(
        rows.tolist(), rewards.tolist(), kinds.tolist(), env_ts, following, strict=False
    ):
        terms = until - since  # env steps with a reward or None; RLlib adds a float zero for None
        if kind == OTHER:
            value, n = block.others[row]
            objects.append(value if n == terms else value + 0.0)
        elif kind >= INT and kind - INT + 1 < terms:
            objects.append(reward)
        else:
            objects.append(as_object(reward, kind))
    return objects
