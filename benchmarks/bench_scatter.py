"""Scattering the result of one step() of many agents to rows, and making the dicts of actions."""

import gymnasium as gym
import numpy as np
import pytest

from fastmarl.core.native._actions import ActionDicts, ModuleActions
from fastmarl.core.native._module_rows import ModuleRows
from fastmarl.core.native._records import EpisodeRecord
from fastmarl.core.native._scatter import Scatter
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.store.block import Block
from fastmarl.core.store.lanes import LaneTable
from fastmarl.core.store.memory import MemoryRing

SHAPES = {"vector": ((8,), np.float32), "image": ((84, 84, 3), np.uint8)}


@pytest.fixture
def table():
    return LaneTable([frozenset()], lambda agent, env: 0, late_rewards="error", respawn=False)


@pytest.mark.benchmark(group="scatter one step")
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("agents", [2, 128])
def bench_write_step(benchmark, table, agents, kind):
    shape, dtype = SHAPES[kind]
    rows = ModuleRows()
    block = Block(RowLayout(gym.spaces.Box(0, 255, shape, dtype)), MemoryRing(), rows)
    scatter = Scatter(table, lambda module, *more: block.make_room(*more), [rows])
    table.records[0] = EpisodeRecord(0, "episode", 0.0)
    obs = {f"agent_{i}": np.ones(shape, dtype) for i in range(agents)}
    flags = {**dict.fromkeys(obs, False), "__all__": False}
    step = obs, dict.fromkeys(obs, 1.0), flags, flags, {agent: {} for agent in obs}
    scatter.write_reset(0, obs, {})

    def rewind():
        rows.n = agents
        return (0, *step), {}

    benchmark.pedantic(scatter.write_step, setup=rewind, rounds=500, warmup_rounds=20)
    assert rows.n == 2 * agents


@pytest.mark.benchmark(group="actions of one step")
@pytest.mark.parametrize("kind", ["numbers", "arrays"])
@pytest.mark.parametrize("agents", [2, 128])
def bench_action_dict(benchmark, table, agents, kind):
    rows, module = ModuleRows(), ModuleActions()
    block = Block(RowLayout(gym.spaces.Discrete(2)), MemoryRing(), rows)
    scatter = Scatter(table, lambda module, *more: block.make_room(*more), [rows])
    table.records[0] = EpisodeRecord(0, "episode", 0.0)
    scatter.write_reset(0, {f"agent_{i}": 0 for i in range(agents)}, {})
    dicts = ActionDicts(table, [module])
    if kind == "numbers":
        module.set_values(0, [0] * agents)
    else:
        module.set_arrays(0, np.zeros((agents, 2), np.float32))
    actions = benchmark(dicts.of, table.envs[0])
    assert len(actions) == agents
