"""A module's rows in the drop-in: whatever is interrupted, compiled code writes to rows that are there."""

import numpy as np
import pytest
from support.interrupts import in_own_thread, interrupted

from fastmarl.core.native._module_rows import ModuleRows
from fastmarl.core.native._records import EpisodeRecord
from fastmarl.core.native._rllib_scatter import RewardKinds, RLlibScatter
from fastmarl.core.store import block
from fastmarl.core.store.lanes import LaneTable
from fastmarl.core.store.memory import MemoryRing
from fastmarl.rllib.store import block as rllib_block
from fastmarl.rllib.store.block import RLlibBlock
from fastmarl.rllib.store.layout import WHOLE


@pytest.mark.parametrize("file", [rllib_block.__file__, block.__file__], ids=["rllib/block.py", "block.py"])
@in_own_thread
def test_kinds_of_rewards_reach_as_far_as_the_rows_do(file):
    at_line, goes_on = 0, True
    while goes_on:
        bound = []
        rows = ModuleRows()
        made = RLlibBlock(WHOLE, MemoryRing(), rows, lambda block: bound.append(len(block.kind_R)))  # noqa: B023
        rows.n = rows.capacity
        goes_on = interrupted(lambda: made.make_room(1), file=file, at=at_line)  # noqa: B023
        assert bound[-1] >= rows.capacity, at_line
        at_line += 1
    assert at_line > 5 and rows.capacity == bound[-1] == block.GROWTH * bound[0]


def test_a_reward_of_a_row_without_a_kind_is_an_error():
    table = LaneTable([frozenset()], lambda agent, env: 0, late_rewards="error", respawn=False)
    rows = ModuleRows()
    RLlibBlock(WHOLE, MemoryRing(), rows, lambda block: None)
    scatter = RLlibScatter(table, None, [rows], True)
    kinds = np.zeros(8, np.uint8)
    scatter.bind_kinds(0, RewardKinds(kinds[:1], {}))
    table.records[0] = EpisodeRecord(0, "episode", 0.0)
    scatter.write_reset(0, {"a": 0}, {})
    scatter.write_step(0, {"a": 0}, {"a": 1.0}, {"__all__": False}, {}, {})
    with pytest.raises(IndexError, match="there is no row 1 among 1"):
        scatter.write_step(0, {"a": 0}, {"a": 1.0}, {"__all__": False}, {}, {})
    assert kinds.tolist() == [1, *[0] * 7]
