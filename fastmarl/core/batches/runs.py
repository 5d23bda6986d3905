"""Uniform access to trajectory columns, whether stored in a block or in separate arrays.

Axes in names: S trajectory, N step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fastmarl.core.batches.agent_episode_table import COUNT, FINAL, ROW, SOURCE
from fastmarl.core.episodes.sources import Source
from fastmarl.core.native import _steps, _store
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.store.block import Block


class BlockRun:
    """Consecutive trajectories in the same block.

    Args:
        numbers: int64 [s, 10], see `AgentEpisodeTable`.

    Attributes:
        rows: Index of each step in the columns, int64 [N].
        last_row_S: Index of the last observation of each trajectory, int64; unused for trajectories with a
            final observation.
    """

    def __init__(self, block: Block, numbers: np.ndarray):
        self._block = block
        self.last_row_S = numbers[:, ROW]
        self.rows = _store.acted_rows(block.prev_R, self.last_row_S, numbers[:, COUNT], numbers[:, FINAL])

    def output_keys(self) -> tuple[str, ...]:
        return self._block.output_keys()

    def observations(self) -> Any:
        return self._block.layout.nest(list(self._block.obs))

    def actions(self) -> Any:
        return self._block.output(Columns.ACTIONS)

    def raw_rewards(self) -> np.ndarray:
        """Return the received rewards, before `recorded_rewards()` is applied."""
        return self._block.reward_R

    def recorded_rewards(self, raw: np.ndarray) -> np.ndarray:
        return self._block.recorded_rewards(raw)

    def output(self, name: Any) -> Any:
        """Return a module output, even if it is named like another column."""
        return self._block.output(name)

    def env_ts(self) -> np.ndarray:
        return self._block.env_t_R

    def final_observations(self) -> Any:
        """Return the final observations, indexed by the FINAL column of the table."""
        return self._block.layout.nest(list(self._block.final_obs))


class SourceRun:
    """A single trajectory stored outside of blocks (joined, sliced or restored); see `BlockRun`."""

    def __init__(self, source: Source):
        self._source = source
        self.rows = np.arange(source.n_obs - 1)
        self.last_row_S = np.array([source.n_obs - 1])

    def output_keys(self) -> tuple[str, ...]:
        return self._source.extra_keys()

    def observations(self) -> Any:
        return self._source.observations()

    def actions(self) -> Any:
        return self._source.actions()

    def raw_rewards(self) -> np.ndarray:
        return self._source.rewards()

    def recorded_rewards(self, raw: np.ndarray) -> np.ndarray:
        return raw

    def output(self, name: Any) -> Any:
        return self._source.extra(name)

    def env_ts(self) -> np.ndarray:
        return self._source.env_ts()

    def final_observations(self) -> Any:
        return self._source.observations()


Run = BlockRun | SourceRun


def runs_of(sources: Sequence[Block | Source], numbers: np.ndarray) -> tuple[list[Run], list[int]]:
    """Return the runs in order, and the index of the first agent episode of each run."""
    is_block = np.array([isinstance(source, Block) for source in sources], np.int64)
    firsts = _steps.firsts_of_runs(numbers[:, SOURCE], is_block)
    runs: list[Run] = []
    for first, end in pairwise([*firsts, len(numbers)]):
        source = sources[numbers[first, SOURCE]]
        runs.append(BlockRun(source, numbers[first:end]) if isinstance(source, Block) else SourceRun(source))
    return runs, firsts
