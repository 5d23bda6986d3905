"""Arrays without elements: their strides say nothing of their size, and a copy by strides spoils what is near."""

import gymnasium as gym
import numpy as np
import pytest
from support.scripted import counting, scripted

import fastmarl
from fastmarl.core.envs.values import misfits
from fastmarl.core.native import _store
from fastmarl.core.native._leaf_rows import LeafRows
from fastmarl.core.native._module_rows import ModuleRows
from fastmarl.core.native._records import EpisodeRecord
from fastmarl.core.native._scatter import Scatter
from fastmarl.core.store.lanes import LaneTable

spaces = gym.spaces
SHAPES = [(0,), (0, 300), (300, 0), (2, 0, 5)]
POISON = 0xAB


def amid_poison(shape, dtype=np.float64):
    """(all of the memory, an array in its middle)."""
    memory = np.full(1 << 16, POISON, np.uint8)
    return memory, np.ndarray(shape, dtype, memory.data, 1 << 15)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_without_numbers_write_nothing(shape):
    rows = ModuleRows()
    memory, array = amid_poison((8, *shape))
    final_memory, final_array = amid_poison((8, *shape))
    ints = np.zeros((5, 8), np.int64)
    rows.bind([LeafRows(array, (), ())], np.zeros(8, np.int32), ints[0], np.zeros(8, np.int32), np.zeros(8))
    rows.bind_finals([LeafRows(final_array, (), ())], ints[1], ints[2])
    table = LaneTable([frozenset()], lambda agent, env: 0, late_rewards="error", respawn=False)
    scatter = Scatter(table, None, [rows])
    table.records[0] = EpisodeRecord(0, "episode", 0.0)
    value_memory, value = amid_poison(shape)
    value_memory[:] = 1
    scatter.write_reset(0, {"a": value, "b": value.astype(np.float32)}, {})
    scatter.write_step(0, {"a": value, "b": value}, {}, {"__all__": False}, {}, {})
    scatter.write_step(0, {"a": value}, {}, {"__all__": True}, {}, {})
    assert (rows.n, rows.n_finals) == (4, 2)
    assert (memory == POISON).all()
    assert (final_memory == POISON).all()


def test_outputs_without_numbers_are_recorded_at_once():
    memory, column = amid_poison((8, 0, 300))
    assert _store.write_rows({"x": column}, {"x": np.zeros((3, 0, 300))}, 2, 3)
    assert (memory == POISON).all()


def floats(shape):
    return spaces.Box(-1, 1, shape, np.float32)


OBSERVATIONS = {
    "alone": floats((0,)),
    "of two axes": floats((0, 300)),
    "in a dict": spaces.Dict({"none": floats((300, 0)), "some": floats((3,)), "scalar": floats(())}),
}
ACTIONS = {
    "number": spaces.Discrete(3),
    "nothing": floats((0,)),
    "in a tuple": spaces.Tuple([floats((0, 3)), spaces.Discrete(3)]),
}


@pytest.mark.thinned(3)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # torch's, of layers without inputs
@pytest.mark.parametrize("mode", [{}, {"explore": False}, {"random_actions": True}], ids=str)
@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_agents_that_see_or_do_nothing_are_sampled(observations, actions, mode):
    observation_space, action_space = OBSERVATIONS[observations], ACTIONS[actions]
    see = lambda agent, t: observation_space.sample()  # noqa: E731
    env = scripted(counting(2, 5), space=observation_space, action_space=action_space, see=see)
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, policies={"p"}))
    for episode in runner.sample(num_timesteps=200, **mode):
        for part in episode.agent_episodes.values():
            assert part.get_rewards().tolist() == [1.0] * 5
            got = part.get_actions()
            leaf = got[0] if isinstance(got, tuple) else got
            assert leaf.shape == (5, *(action_space[0] if isinstance(got, tuple) else action_space).shape)
    received = [action for actions in runner.env.envs[0].actions for action in actions.values()]
    assert len(received) == 400 and not any(list(misfits(action_space, action)) for action in received)
