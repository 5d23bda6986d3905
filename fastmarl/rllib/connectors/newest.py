"""The newest observations, on their way through env-to-module connectors, and the rewriting of their columns."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.core.store.lanes import LaneTable
from fastmarl.rllib.store.block import RLlibBlock
from fastmarl.rllib.store.layout import ObservationLayout


class Newest:
    """One module's observations that have come since the connectors ran last: rows first, then final ones.

    Args:
        module: index of the module.
        block: its rows.
        table: the lanes.
        rows, finals: int64, their places in the block.

    Attributes:
        lanes: int64 [n], whose they are.
        former: int64 [n], the row before each; -1: it is the first of its agent's chunk.
        layout, leaves: what connectors have made of them up to now, [n, ...] each.
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
        """All that have come to a block."""
        rows = np.arange(block.n_connected, block.rows.n)
        return cls(module, block, table, rows, np.arange(block.n_finals_connected, block.rows.n_finals))

    @cached_property
    def leaves(self) -> list[np.ndarray]:
        """See the class."""
        if not len(self.finals):
            return [leaf[self.rows] for leaf in self.block.raw_obs]
        return [
            np.concatenate([leaf[self.rows], final_leaf[self.finals]])
            for leaf, final_leaf in zip(self.block.raw_obs, self.block.raw_final_obs, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.lanes)

    def parted(self, env_indices: list[int]) -> tuple["Newest", "Newest"]:
        """Those of these envs, and those of the others; as the envs have sent them."""
        chosen = np.isin(self.env_indices, env_indices)
        rows, finals = chosen[: len(self.rows)], chosen[len(self.rows) :]
        return (
            Newest(self.module, self.block, self._table, self.rows[rows], self.finals[finals]),
            Newest(self.module, self.block, self._table, self.rows[~rows], self.finals[~finals]),
        )

    @cached_property
    def agents(self) -> list[Hashable]:
        """Agent ids, [n]."""
        agent_ids = self._table.agent_ids
        return [agent_ids[lane] for lane in self.lanes.tolist()]

    @cached_property
    def env_indices(self) -> np.ndarray:
        """int32 [n]."""
        env_indices: np.ndarray = self._table.env_L[self.lanes]
        return env_indices

    @cached_property
    def who(self) -> list[tuple[int, Hashable]]:
        """(env index, agent id), [n]."""
        return list(zip(self.env_indices.tolist(), self.agents, strict=True))

    def rewrite(self, layout: ObservationLayout, leaves: list[np.ndarray]) -> None:
        """A connector has made these of them."""
        self.layout, self.leaves = layout, leaves

    def items(self) -> list[Any]:
        """One by one, [n]."""
        return self.layout.items(self.leaves[0] if self.layout.whole else self.layout.nest(self.leaves))

    def rewrite_items(self, items: list[Any]) -> None:
        """The same, one by one."""
        self.layout = ObservationLayout.common(items)
        self.leaves = self.layout.columns(items)

    def record(self) -> None:
        """Let these be the observations on record."""
        self.block.record_newest(self.rows, self.finals, self.layout, self.leaves)


Change = Callable[[], None]


class ColumnConnector:
    """Does what one of RLlib's connector pieces does, for all agents of a module at once, bit-identical.

    Args:
        piece: RLlib's, whose settings and state are used.

    Attributes:
        reads_steps: whether it looks at actions and rewards, too.
    """

    reads_steps = False

    def __init__(self, piece: Any):
        self.piece = piece

    @property
    def space(self) -> gym.Space:
        """Return the observation space that the piece gives agents' episodes."""
        space: gym.Space = self.piece.observation_space
        return space

    def rewrite(self, newest: list[Newest]) -> Change | None:
        """Return the function that replaces all modules' observations; None: RLlib's own code has to do that.

        Until it is called, nothing is changed.
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
        """Return the function for one module, for connectors to which the order of agents means nothing."""
        raise NotImplementedError
