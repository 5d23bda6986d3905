"""One env's scatter, to be fed by hand."""

import gymnasium as gym
import numpy as np

from fastmarl.core.native._module_rows import ModuleRows
from fastmarl.core.native._records import EpisodeRecord
from fastmarl.core.native._scatter import Scatter
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.store.block import Block
from fastmarl.core.store.lanes import LaneTable
from fastmarl.core.store.memory import MemoryRing

BOX = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)


class Recorder:
    """One env's scatter with a block of poisoned memory behind it."""

    def __init__(self, space=BOX, agents=(), **options):
        options = {"late_rewards": "error", "respawn": False} | options
        self.table = LaneTable([frozenset(agents)], lambda agent, env: 0, **options)
        self.rows = ModuleRows()
        self.block = Block(RowLayout(space), MemoryRing(), self.rows)
        for array in (*self.block.obs, self.block.reward_R, self.block.lane_R, self.block.prev_R):
            if array.dtype != object:
                array.view(np.uint8)[:] = 0xAB
        self.scatter = Scatter(self.table, lambda module, *more: self.block.make_room(*more), [self.rows])
        self.table.records[0] = EpisodeRecord(0, "episode", 0.0)

    def reset(self, obs):
        self.scatter.write_reset(0, obs, {})

    def step(self, obs, rewards=None, terminateds=None, truncateds=None, infos=None):
        terminateds = {"__all__": False} if terminateds is None else terminateds
        return self.scatter.write_step(0, obs, rewards or {}, terminateds, truncateds or {}, infos or {})

    def lane(self, agent):
        return self.table.envs[0].lane_of[agent]
