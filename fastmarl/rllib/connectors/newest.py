"""The latest observations, as processed by the env-to-module connectors, and the base class of connectors."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.store.lanes import LaneTable
from fastmarl.rllib.store.block import RLlibBlock
from fastmarl.rllib.store.layout import ObservationLayout


class Newest:
    """Observations of a module since the connectors last ran: rows first, then final observations.

    Args:
        module: Index of the module.
        block: Rows of the module.
        table: Env, agent and module of each lane.
        rows: int64, row indices in the block.
        finals: int64, indices of final observations in the block.

    Attributes:
        lanes: int64 [n], the lane of each observation.
        former: int64 [n], the row before each observation, or -1 if it is the first of its agent in the chunk.
        layout, leaves: The observations after the connectors that have already run, [n, ...] each.
    """

    def __init__(self, module: int, block: RLlibBlock, table: LaneTable, rows: np.ndarray, finals: np.ndarray):
        self.module = module
        self.block = block
        self.rows = rows
        self.finals = finals
        self._table = table
        last = block.final_prev_F[finals]
        self.lanes = np.concatenate([block.lane_R[rows], block.lane_R[last]])
        self.former = np.concatenate([block.prev_R[rows], last])
        self.layout = block.env_layout

    @classmethod
    def of(cls, module: int, block: RLlibBlock, table: LaneTable) -> "Newest":
        """Return all new observations in a block."""
        rows = np.arange(block.n_connected, block.rows.n)
        return cls(module, block, table, rows, np.arange(block.n_finals_connected, block.rows.n_finals))

    @cached_property
    def leaves(self) -> list[np.ndarray]:
        """Leaves of the observations, [n, ...] each."""
        if not len(self.finals):
            return [leaf[self.rows] for leaf in self.block.raw_obs]
        return [
            np.concatenate([leaf[self.rows], final_leaf[self.finals]])
            for leaf, final_leaf in zip(self.block.raw_obs, self.block.raw_final_obs, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.lanes)

    def parted(self, env_indices: list[int]) -> tuple["Newest", "Newest"]:
        """Split into the observations of these envs and of all others, as sent by the envs."""
        chosen = np.isin(self.env_indices, env_indices)
        rows, finals = chosen[: len(self.rows)], chosen[len(self.rows) :]
        return (
            Newest(self.module, self.block, self._table, self.rows[rows], self.finals[finals]),
            Newest(self.module, self.block, self._table, self.rows[~rows], self.finals[~finals]),
        )

    @cached_property
    def agents(self) -> list[Hashable]:
        """Agent id of each observation, [n]."""
        agent_ids = self._table.agent_ids
        return [agent_ids[lane] for lane in self.lanes.tolist()]

    @cached_property
    def env_indices(self) -> np.ndarray:
        """Env index of each observation, int32 [n]."""
        env_indices: np.ndarray = self._table.env_L[self.lanes]
        return env_indices

    @cached_property
    def who(self) -> list[tuple[int, Hashable]]:
        """(env index, agent id) of each observation, [n]."""
        return list(zip(self.env_indices.tolist(), self.agents, strict=True))

    def rewrite(self, layout: ObservationLayout, leaves: list[np.ndarray]) -> None:
        """Replace the observations with the result of a connector."""
        self.layout, self.leaves = layout, leaves

    def items(self) -> list[Any]:
        """Return the observations as a list of items, [n]."""
        return self.layout.items(self.leaves[0] if self.layout.has_objects else self.layout.nest(self.leaves))

    def rewrite_items(self, items: list[Any]) -> None:
        """Replace the observations with a list of items, [n]."""
        self.layout = ObservationLayout.common(items)
        self.leaves = self.layout.columns(items)

    def record(self) -> None:
        """Store the observations in the block."""
        self.block.record_newest(self.rows, self.finals, self.layout, self.leaves)


Change = Callable[[], None]


class ColumnConnector:
    """Base class of connectors that replace an RLlib piece bit-identically, for all agents of a module together.

    Args:
        piece: The RLlib piece, whose settings and state are used.

    Attributes:
        reads_steps: True if the connector also reads actions and rewards.
    """

    reads_steps = False

    def __init__(self, piece: Any):
        self.piece = piece

    @property
    def space(self) -> gym.Space:
        """Observation space that the piece sets on agent episodes."""
        space: gym.Space = self.piece.observation_space
        return space

    def rewrite(self, newest: list[Newest]) -> Change | None:
        """Return a function that rewrites the observations of all modules, or None if the RLlib piece must run instead.

        Nothing changes until the returned function is called.
        """
        changes = [self.rewrite_module(each) for each in newest]
        if None in changes:
            return None

        def make_all() -> None:
            for change in changes:
                assert change is not None
                change()

        return make_all

    def rewrite_module(self, newest: Newest) -> Change | None:
        """Return a function that rewrites the observations of a single module, or None.

        Connectors whose result does not depend on the order of agents override this.
        """
        raise NotImplementedError
