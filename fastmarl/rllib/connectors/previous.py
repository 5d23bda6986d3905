"""RLlib's PrevActionsPrevRewards on entire columns: adds the last actions and rewards to observations."""

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from fastmarl.core.kernels.frames import former_rows, one_hot_frames
from fastmarl.core.spaces.columns import Columns
from fastmarl.rllib.connectors.newest import Change, ColumnConnector, Newest
from fastmarl.rllib.store.block import RLlibBlock
from fastmarl.rllib.store.builder import FLOAT64_KINDS
from fastmarl.rllib.store.layout import ObservationLayout


class ColumnsWithPrevious(ColumnConnector):
    """Adds actions and rewards like RLlib's PrevActionsPrevRewards, with zeros before the chunk and its lookback.

    Args:
        piece: The RLlib connector piece.
        action_spaces: Per env, agent id -> action space.
    """

    reads_steps = True

    def __init__(self, piece: Any, action_spaces: list[dict[Hashable, Any]]):
        super().__init__(piece)
        self._action_spaces = action_spaces
        self._n_choices: dict[tuple[int, Hashable], int] = {}  # 0: the actions are not discrete
        self._layouts: dict[ObservationLayout, ObservationLayout] = {}  # before -> after

    def rewrite_module(self, newest: Newest) -> Change | None:
        piece, block = self.piece, newest.block
        if newest.layout.has_objects or block.former or not piece.n_prev_actions or not piece.n_prev_rewards:
            return None
        rows = self._rows(newest, max(piece.n_prev_actions, piece.n_prev_rewards))
        if not FLOAT64_KINDS[block.kind_R[rows[rows >= 0]]].all():
            return None
        actions = self._one_hot(newest, rows[:, len(rows[0]) - piece.n_prev_actions :])
        if actions is None:
            return None
        rewards = _rewards(block, rows[:, len(rows[0]) - piece.n_prev_rewards :])
        return partial(self._append, newest, actions, rewards)

    def _rows(self, newest: Newest, n: int) -> np.ndarray:
        """Return the rows of the last n steps of each agent in order, int64 [len(newest), n]; missing steps are -1."""
        rows = np.empty((len(newest), n), np.int64)
        former_rows(newest.former, newest.block.prev_R, rows)
        return rows

    def _one_hot(self, newest: Newest, rows: np.ndarray) -> np.ndarray | None:
        """Return one-hot actions, float32 [len(newest), n, choices], or None if RLlib would encode them differently."""
        depth = self._n_choices_of(newest)
        if not depth:
            return None
        out = np.zeros((*rows.shape, depth), np.float32)
        if (rows >= 0).any():
            actions = newest.block.outputs.get(Columns.ACTIONS)
            if actions is None or actions.ndim != 1 or actions.dtype.kind not in "iu":
                return None
            known = actions[rows[rows >= 0]]
            if (known < 0).any() or (known >= depth).any():
                return None
            one_hot_frames(actions[:, None], rows, np.array([depth]), out)
        return out

    def _n_choices_of(self, newest: Newest) -> int:
        """Return the number of discrete actions if it is the same for all these agents, otherwise 0."""
        numbers = {self._n_choices.get(who, -1) for who in newest.who}
        if -1 in numbers:
            for env_index, agent_id in newest.who:
                space = self._action_spaces[env_index].get(agent_id)
                self._n_choices[env_index, agent_id] = int(space.n) if isinstance(space, Discrete) else 0
            numbers = {self._n_choices[who] for who in newest.who}
        return numbers.pop() if len(numbers) == 1 else 0

    def _append(self, newest: Newest, actions: np.ndarray, rewards: np.ndarray) -> None:
        layout = self._layouts.get(newest.layout)
        if layout is None or layout.leaves[-2].shape != actions.shape[1:]:
            layout = ObservationLayout.of(self._together(newest.items()[0], actions[0], rewards[0]))
            self._layouts[newest.layout] = layout
        newest.rewrite(layout, [*newest.leaves, actions, rewards])

    def _together(self, observed: Any, actions: Any, rewards: Any) -> dict[str, Any]:
        piece = self.piece
        return {piece.ORIG_OBS_KEY: observed, piece.PREV_ACTIONS_KEY: actions, piece.PREV_REWARDS_KEY: rewards}


def _rewards(block: RLlibBlock, rows: np.ndarray) -> np.ndarray:
    """Return the rewards of rows as float64 [n, steps], 0 where there is no row."""
    return np.where(rows >= 0, block.reward_R[rows], 0.0)
