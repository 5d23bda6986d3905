"""Action masks for module logits, read from observations or infos; `spaces.masks` defines their forms."""

from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.errors import ActionMaskError
from fastmarl.core.native._masks import read_legal
from fastmarl.core.native._records import with_new_infos
from fastmarl.core.spaces.masks import MASK, RULES_OUT_ALL, choices_of, mask_key, mask_row, size_problem
from fastmarl.core.store.block import Block
from fastmarl.core.store.lanes import LaneTable


class ActionMasks:
    """Action masks for the agents of a module.

    The mask in the recorded observations takes precedence. If there is none, because connectors dropped it, the mask in
    the env observation is used, or else the mask in the info.

    Args:
        connectors: Connectors of the module.
        action_space: Action space of its agents.
        table: Lanes, for infos and for agent names in errors.

    Attributes:
        key: Key of the mask in observations; None if masks can only come in infos.
        on_record: True if the observations that the module sees contain the mask; otherwise masks are recorded in a
            column.

    Raises:
        ConfigError: If the size of the mask in observations does not match the action space.
    """

    def __init__(self, connectors: ModuleConnectors, action_space: gym.Space, table: LaneTable):
        self._table = table
        self._sizes = choices_of(action_space)
        layout = connectors.recorded_layout
        self.key = mask_key(layout.space, action_space)
        self._is_raw = self.key is None
        if self._is_raw and connectors.raw_layout is not None:
            layout = connectors.raw_layout
            self.key = mask_key(layout.space, action_space)
        self.on_record = not self._is_raw and self.key == mask_key(connectors.observation_space, action_space)
        self._found: tuple[np.ndarray | None, ...] = ()  # result of the next legal(), if not empty
        self._sizes_P = np.array(self._sizes, np.intp)
        self._memory = np.empty((0, sum(self._sizes)), np.bool_)
        self._mask_indices = [i for i, leaf in enumerate(layout.leaves) if self.key and leaf.path[:1] == (self.key,)]

    def legal(self, block: Block, first: int, end: int) -> np.ndarray | None:
        """Return the legal actions of rows first .. end.

        Returns:
            bool [end - first, choices], which the next call overwrites; None if all actions are legal.

        Raises:
            ActionMaskError: If an agent has no legal action, or the mask in its info has the wrong size.
        """
        if self._found:
            (legal,), self._found = self._found, ()
            return legal
        if not self._sizes:
            return None
        if self.key is not None:
            mask = self._from_observations(block, first, end)
        else:
            found = self._in_infos(block, first, end)
            if not found:
                return None
            mask = self._from_infos(found, block, first, end)
        if end - first > len(self._memory):
            self._memory = np.empty((end - first, sum(self._sizes)), np.bool_)
        legal = self._memory[: end - first]
        if (unfit := read_legal(mask, self._sizes_P, legal)) >= 0:
            raise self._error(block, first + unfit, RULES_OUT_ALL)
        return legal

    def find(self, block: Block, first: int, end: int) -> np.ndarray | None:
        """Return the result of `legal()`, and store it for the next `legal()` call, which must be for the same rows."""
        legal = self.legal(block, first, end)
        self._found = (legal,)
        return legal

    def _from_observations(self, block: Block, first: int, end: int) -> np.ndarray:
        leaves = block.raw_obs if self._is_raw else block.obs
        masks = [leaves[i][first:end] for i in self._mask_indices]
        return (
            masks[0] if len(masks) == 1 else np.concatenate([mask.reshape(end - first, -1) != 0 for mask in masks], 1)
        )

    def _in_infos(self, block: Block, first: int, end: int) -> dict[int, Any]:
        """Return row -> mask, from the infos that came with the observations."""
        found: dict[int, Any] = {}
        for env in with_new_infos(self._table.records, self._table.envs):
            for env_t, lane, info in reversed(env.infos):
                if env_t != env.env_t:
                    break
                if lane < 0 or MASK not in info:
                    continue
                row = int(self._table.row_L[lane])
                if first <= row < end and block.lane_R[row] == lane:
                    found[row] = info[MASK]
        return found

    def _from_infos(self, found: dict[int, Any], block: Block, first: int, end: int) -> np.ndarray:
        legal = np.ones((end - first, sum(self._sizes)), bool)
        for row, mask in found.items():
            values = mask_row(mask)
            if problem := size_problem(values.size, self._sizes):
                raise self._error(block, row, problem)
            legal[row - first] = values != 0
        return legal

    def _error(self, block: Block, row: int, problem: str) -> ActionMaskError:
        lane, where = int(block.lane_R[row]), f"obs[{self.key!r}]" if self.key else f"info[{MASK!r}]"
        agent_id, env_index = self._table.agent_ids[lane], int(self._table.env_L[lane])
        return ActionMaskError(env_index, agent_id, int(block.env_t_R[row]), f"{where} {problem}")
