"""Steps of array envs in which all agents take part and none ends: recorded by one compiled call, as others are."""

import numpy as np
import pytest
from support.differences import assert_same

import fastmarl
from fastmarl.batches import columns
from fastmarl.core.native._array_steps import GroupSteps, put_rows
from fastmarl.core.native._env_lanes import EnvLanes
from fastmarl.core.native._module_rows import ModuleRows
from fastmarl.core.vector.arrays.group import ArrayGroup

ENVS = {
    "fastmarl.simple_spread": {},
    "fastmarl.gridworld": {},
    "fastmarl.lbforaging": {"name": "Foraging-5x5-2p-1f-v3"},
}


def sampled(env, config, calls):
    """Columns and lengths of each call, and the metrics that are no times."""
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(
        env=env, env_config=config, num_envs_per_env_runner=3, model_config={"fcnet_hiddens": [4]}, seed=1
    )) as runner:  # fmt: skip
        found = []
        for call in calls:
            chunks = runner.sample(**call)
            rows = {name: column for name, column in columns(chunks)["default_policy"].items() if name != "eps_id"}
            found.append((rows, [(chunk.env_t_started, chunk.env_t, chunk.is_done) for chunk in chunks]))
        metrics = runner.get_metrics()
    return found, {
        key: value for key, value in metrics.items() if key.startswith(("num_", "episode_return", "episode_len"))
    }


@pytest.mark.parametrize("env", ENVS)
def test_they_are_recorded_as_others(env, monkeypatch):
    calls = [{"num_timesteps": n} for n in (1, 40, 7, 300)] + [{"num_episodes": 4}]
    write, written = ArrayGroup.write_ordinary, []

    def noting(self):
        written.append(write(self))
        return written[-1]

    monkeypatch.setattr(ArrayGroup, "write_ordinary", noting)
    ours = sampled(env, ENVS[env], calls)
    assert True in written and False in written
    monkeypatch.setattr(ArrayGroup, "write_ordinary", lambda self: False)
    assert_same(ours, sampled(env, ENVS[env], calls))


class Step:
    """Two envs of two agents with the lanes 3, 1, 0 and 2, whose last rows are 4 to 7 of 12."""

    def __init__(self, **changes):
        self.envs = [EnvLanes(), EnvLanes()]
        self.lane = np.array([3, 1, 0, 2], np.int32)
        self.reward = np.array([0.5, -1.0, 2.0, 0.0])
        self.terminated, self.truncated = np.zeros((2, 4), np.uint8)
        self.present, self.over = np.ones(4, np.uint8), np.zeros((2, 2), np.uint8)
        self.env_t, self.all_done = np.array([5, 8], np.int32), np.array([1, 2], np.uint8)
        self.row, self.count = np.array([6, 5, 7, 4], np.int64), np.array([9, 8, 7, 6], np.int32)
        self.done, self.n = np.zeros(4, np.uint8), 8
        dtypes = {"lane": np.int32, "prev": np.int64, "env_t": np.int32, "reward": np.float64}
        self.columns = {name: np.full(12, 99, dtype) for name, dtype in dtypes.items()}
        self.columns["reward"][:] = np.arange(12)
        for name, (place, value) in changes.items():
            getattr(self, name)[place] = value

    def arrays(self):
        own = {name: value.copy() for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return own | {name: column.copy() for name, column in self.columns.items()}

    def steps(self):
        arrays = (self.lane, self.reward, self.terminated, self.truncated, self.present)
        return GroupSteps(self.envs, *arrays, self.over, self.env_t, self.all_done)

    def record(self):
        rows = ModuleRows()
        rows.bind([], *self.columns.values())
        rows.n = self.n
        done = self.steps().record_ordinary(rows, self.row, self.count, self.done)
        assert rows.n == self.n + 4 * done
        return done


def test_rows_lanes_and_envs_after_a_step():
    step = Step()
    assert step.record()
    assert step.columns["lane"][8:].tolist() == [3, 1, 0, 2]
    assert step.columns["prev"][8:].tolist() == [4, 5, 6, 7]
    assert step.columns["env_t"][8:].tolist() == [6, 6, 9, 9]
    assert step.columns["reward"].tolist() == [0, 1, 2, 3, 4.5, 4, 8, 7, 0, 0, 0, 0]
    assert all((step.columns[name][:8] == 99).all() for name in ("lane", "prev", "env_t"))
    assert step.row.tolist() == [10, 9, 11, 8] and step.count.tolist() == [10, 9, 8, 7]
    assert step.env_t.tolist() == [6, 9] and step.all_done.tolist() == [0, 0]
    assert [(env.env_t, env.all_done, env.is_complete) for env in step.envs] == [(6, 0, True), (9, 0, True)]


@pytest.mark.parametrize("change", [
    {"lane": (2, -1)}, {"present": (1, 0)}, {"terminated": (3, 1)}, {"truncated": (0, 1)}, {"over": ((0, 1), 1)},
    {"over": ((1, 0), 1)}, {"reward": (3, np.nan)}, {"reward": (0, np.inf)}, {"done": (2, 1)}, {"row": (0, -1)},
], ids=str)  # fmt: skip
def test_other_steps_are_left_as_they_are(change):
    step = Step(**change)
    before = step.arrays()
    assert not step.record()
    assert_same(step.arrays(), before)


def test_rows_without_room_are_left_as_they_are():
    step = Step()
    step.n = 9
    before = step.arrays()
    assert not step.record()
    assert_same(step.arrays(), before)


def test_arrays_of_other_lengths_are_refused():
    step = Step()
    flags = [np.zeros(3, np.uint8)] * 3
    with pytest.raises(ValueError, match="different lengths"):
        GroupSteps(step.envs, step.lane[:3], np.zeros(3), *flags, step.over, step.env_t, step.all_done)


def test_begin_leaves_no_trace_of_the_step_before():
    step = Step(lane=(2, -1), terminated=(0, 1), truncated=(3, 1), present=([0, 2, 3], [0, 1, 0]))
    step.steps().begin()
    assert step.reward.tolist() == [0, 0, 0, 0]
    assert not step.terminated.any() and not step.truncated.any()
    assert step.present.tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0)], ids=str)
@pytest.mark.parametrize("n", [0, 1, 33])
def test_actions_get_to_the_positions_of_their_lanes(dtype, shape, n):
    rng = np.random.default_rng(n)
    lane_R, place_L = rng.permutation(60)[:50].astype(np.int32), rng.permutation(60).astype(np.int32)
    values, out = rng.integers(0, 9, (n, *shape)).astype(dtype), np.full((20, *shape), 99, dtype)
    expected = out.copy()
    for i in range(n):
        position = place_L[lane_R[10 + i]] - 20
        if 0 <= position < 20:
            expected[position] = values[i]
    put_rows(values, lane_R, 10, place_L, 20, out)
    np.testing.assert_array_equal(out, expected)
    assert n < 33 or out.size == 0 or 3 < (out.reshape(20, -1) != 99).any(1).sum() < 20


@pytest.mark.parametrize("change", [
    {"values": np.zeros((2, 2))}, {"values": np.zeros((4, 6))[::2]}, {"out": np.zeros((3, 12))[:, ::2]},
    {"lane_R": np.zeros(9, np.int64)}, {"place_L": np.zeros(9, np.int64)}, {"first": 8}, {"first": -1},
], ids=str)  # fmt: skip
def test_rows_that_do_not_fit_are_refused(change):
    arguments = {
        "values": np.zeros((2, 6)), "lane_R": np.zeros(9, np.int32), "first": 0, "place_L": np.zeros(9, np.int32),
        "first_position": 0, "out": np.zeros((3, 6)),
    }  # fmt: skip
    with pytest.raises(ValueError, match="do not fit"):
        put_rows(*(arguments | change).values())
    with pytest.raises(IndexError, match="no lane 9"):
        put_rows(*(arguments | {"lane_R": np.full(9, 9, np.int32)}).values())
