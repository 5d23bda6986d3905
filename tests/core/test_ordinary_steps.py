"""Steps of array envs in which all agents take part and none ends: recorded by one compiled call, as others are."""

import gymnasium as gym
import numpy as np
import pytest
from support.differences import assert_same

import fastmarl
from fastmarl.batches import columns
from fastmarl.core.native._array_steps import GroupSteps, put_rows, record_ordinary
from fastmarl.core.native._env_lanes import EnvLanes
from fastmarl.core.native._leaf_rows import LeafRows
from fastmarl.core.native._module_rows import ModuleRows
from fastmarl.core.vector.arrays import scatter
from fastmarl.envs import ArrayEnv


class Teams(ArrayEnv):
    """Two groups with the same spaces; episodes of 7 steps."""

    def __init__(self, num_envs):
        observed, acts = gym.spaces.Box(-1e9, 1e9, (2,)), gym.spaces.Discrete(3)
        groups = {"red": ["r0", "r1"], "blue": ["b0"]}
        super().__init__(num_envs, groups, dict.fromkeys(groups, observed), dict.fromkeys(groups, acts))
        self.t = np.zeros(num_envs, np.int64)

    def reset(self, env_indices, out, *, seeds=None):
        self.t[env_indices] = 0
        self._observe(out)

    def step(self, actions, out):
        self.t += 1
        self._observe(out)
        for name, arrays in out.groups.items():
            arrays.rewards[:] = actions[name] + 10 * self.t[:, None]
        out.truncated[:] = self.t == 7

    def _observe(self, out):
        for name, arrays in out.groups.items():
            arrays.obs[..., 0] = self.t[:, None]
            arrays.obs[..., 1] = np.arange(len(self.groups[name])) + 100 * (name == "blue")


SPREAD = ["agent_0", "agent_1", "agent_2"]
TAG = ["agent_0", "adversary_0", "adversary_1", "adversary_2"]
CASES = {  # env, its config, a policy for each of these agents
    "one group": ("fastmarl.simple_spread", {}, ()),
    "policies of their own": ("fastmarl.simple_spread", {}, SPREAD),
    "two groups": ("fastmarl.simple_tag", {}, TAG),
    "two groups, one policy": (lambda config: Teams(config.num_envs), {}, ()),
    "dict observations": ("fastmarl.gridworld", {}, ()),
    "an end by the task": ("fastmarl.lbforaging", {"name": "Foraging-5x5-2p-1f-v3"}, ()),
}


def sampled(env, config, policies, calls):
    """Columns and lengths of each call, and the metrics that are no times."""
    own = {"policies": set(policies), "policy_mapping_fn": lambda agent_id, episode: agent_id} if policies else {}
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(
        env=env, env_config=config, num_envs_per_env_runner=3, model_config={"fcnet_hiddens": [4]}, seed=1, **own
    )) as runner:  # fmt: skip
        found = []
        for call in calls:
            chunks = runner.sample(**call)
            rows = {
                module: {name: column for name, column in of_module.items() if name != "eps_id"}
                for module, of_module in columns(chunks).items()
            }
            found.append((rows, [(chunk.env_t_started, chunk.env_t, chunk.is_done) for chunk in chunks]))
        metrics = runner.get_metrics()
    return found, {
        key: value for key, value in metrics.items() if key.startswith(("num_", "episode_return", "episode_len"))
    }


@pytest.mark.parametrize("case", CASES)
def test_they_are_recorded_as_others(case, monkeypatch):
    calls = [{"num_timesteps": n} for n in (1, 40, 7, 300)] + [{"num_episodes": 4}]
    record, recorded = scatter.record_ordinary, []

    def noting(*arguments):
        recorded.append(record(*arguments))
        return recorded[-1]

    monkeypatch.setattr(scatter, "record_ordinary", noting)
    ours = sampled(*CASES[case], calls)
    assert True in recorded and False in recorded
    monkeypatch.setattr(scatter, "record_ordinary", lambda *arguments: False)
    assert_same(ours, sampled(*CASES[case], calls))


def test_a_module_may_get_the_index_of_one_that_takes_another_dtype(monkeypatch):
    space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)

    def recorded():
        with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(
            env=lambda config: Teams(config.num_envs), num_envs_per_env_runner=2, seed=0, policies={"a", "b"},
            policy_mapping_fn=lambda agent_id, episode: "b" if agent_id == "b0" else "a", keep_float64=True,
            model_config={"fcnet_hiddens": [4]},
        )) as runner:  # fmt: skip
            runner.sample(num_episodes=4)
            runner.set_policy_mapping_fn(lambda agent_id, episode: "a")
            runner.sample(num_episodes=4)
            runner.remove_module("b")
            runner.sample(num_episodes=4)
            spec = fastmarl.RLModuleSpec(
                observation_space=space, action_space=gym.spaces.Discrete(3), model_config={"fcnet_hiddens": [4]}
            )
            runner.add_module(
                "c", spec, new_agent_to_module_mapping_fn=lambda agent_id, episode: "c" if agent_id == "b0" else "a"
            )
            return columns(runner.sample(num_episodes=4))["c"]["obs"]

    ours = recorded()
    monkeypatch.setattr(scatter, "record_ordinary", lambda *arguments: False)
    assert_same(ours, recorded())


DTYPES = {"lane": np.int32, "prev": np.int64, "env_t": np.int32, "reward": np.float64}


class Step:
    """Two envs of two agents with the lanes 3, 1, 0 and 2, whose last rows are 4 to 7 of 12.

    The first agent of each env acts by module 1, the other by module 0.
    """

    def __init__(self, **changes):
        self.envs = [EnvLanes(), EnvLanes()]
        self.lane, self.module = np.array([3, 1, 0, 2], np.int32), np.array([1, 0, 1, 0], np.int32)
        self.reward = np.array([0.5, -1.0, 2.0, 0.0])
        self.terminated, self.truncated = np.zeros((2, 4), np.uint8)
        self.present, self.over = np.ones(4, np.uint8), np.zeros((2, 2), np.uint8)
        self.env_t, self.all_done = np.array([5, 8], np.int32), np.array([1, 2], np.uint8)
        self.row, self.count = np.array([6, 5, 7, 4], np.int64), np.array([9, 8, 7, 6], np.int32)
        self.done = np.zeros(4, np.uint8)
        self.obs, self.n_rows = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([8, 7])  # by module
        self.columns = [{name: np.full(12, 99, dtype) for name, dtype in DTYPES.items()} for _ in range(2)]
        self.seen = [np.full((12, 2), 99, np.float32) for _ in range(2)]
        for of_module in self.columns:
            of_module["reward"][:] = np.arange(12)
        self.sources = {0: [self.obs], 1: [self.obs]}
        self.actions = [np.full((4, 3), 9, np.float32), np.full(4, 9)]
        for name, (place, value) in changes.items():
            getattr(self, name)[place] = value

    def arrays(self):
        own = {name: value.copy() for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return own, [column.copy() for of_module in self.columns for column in of_module.values()], np.copy(self.seen)

    def group(self):
        arrays = (self.lane, self.module, self.reward, self.terminated, self.truncated, self.present)
        choices = np.array([0]), np.array([4])
        group = GroupSteps(self.envs, *arrays, self.over, self.env_t, self.all_done, self.actions, [None, choices], 20)
        group.modules = [0, 1]
        group.sources.update(self.sources)
        return group

    def record(self):
        rows = []
        for of_module, seen, n in zip(self.columns, self.seen, self.n_rows, strict=True):
            rows.append(ModuleRows())
            rows[-1].bind([LeafRows(seen, (), ())], *of_module.values())
            rows[-1].n = n
        done = record_ordinary([self.group()], rows, self.row, self.count, self.done)
        assert [each.n for each in rows] == [n + 2 * done for n in self.n_rows]
        return done


def test_rows_lanes_and_envs_after_a_step():
    step = Step()
    assert step.record()
    for module, (first, lanes, prev, seen, rewards) in enumerate([
        (8, [1, 2], [5, 7], [[2, 3], [6, 7]], [0, 1, 2, 3, 4, 4, 6, 7, 0, 0, 10, 11]),
        (7, [3, 0], [4, 6], [[0, 1], [4, 5]], [0, 1, 2, 3, 4.5, 5, 8, 0, 0, 9, 10, 11]),
    ]):  # fmt: skip
        written, new = step.columns[module], slice(first, first + 2)
        assert written["lane"][new].tolist() == lanes and written["prev"][new].tolist() == prev
        assert written["env_t"][new].tolist() == [6, 9] and written["reward"].tolist() == rewards
        assert step.seen[module][new].tolist() == seen
        others = [written[name] for name in ("lane", "prev", "env_t")] + [step.seen[module]]
        assert all((np.delete(column, new, 0) == 99).all() for column in others)
    assert step.row.tolist() == [8, 8, 9, 7] and step.count.tolist() == [10, 9, 8, 7]
    assert step.env_t.tolist() == [6, 9] and step.all_done.tolist() == [0, 0]
    assert [(env.env_t, env.all_done, env.is_complete) for env in step.envs] == [(6, 0, True), (9, 0, True)]


@pytest.mark.parametrize("change", [
    {"lane": (2, -1)}, {"present": (1, 0)}, {"terminated": (3, 1)}, {"truncated": (0, 1)}, {"over": ((0, 1), 1)},
    {"over": ((1, 0), 1)}, {"reward": (3, np.nan)}, {"reward": (0, np.inf)}, {"done": (2, 1)}, {"row": (0, -1)},
    {"n_rows": (1, 9)}, {"n_rows": (0, 9)},
], ids=str)  # fmt: skip
def test_other_steps_are_left_as_they_are(change):
    step = Step(**change)
    before = step.arrays()
    assert not step.record()
    assert_same(step.arrays(), before)


def test_rows_of_modules_without_sources_are_left_as_they_are():
    step = Step()
    del step.sources[0]
    before = step.arrays()
    assert not step.record()
    assert_same(step.arrays(), before)


def test_sources_of_another_size_are_refused():
    step = Step()
    step.sources[1] = [np.zeros((4, 3), np.float32)]
    before = step.arrays()
    with pytest.raises(ValueError, match="a row of 8 bytes"):
        step.record()
    assert_same(step.arrays(), before)


def test_arrays_of_other_lengths_are_refused():
    step = Step()
    step.lane = step.lane[:3]
    with pytest.raises(ValueError, match="different lengths"):
        step.group()


def test_begin_leaves_no_trace_of_the_step_before():
    step = Step(
        lane=(2, -1), terminated=(0, 1), truncated=(3, 1), present=([0, 2, 3], [0, 1, 0]), over=((0, 1), 1)
    )  # fmt: skip
    step.group().begin()
    assert step.reward.tolist() == [0, 0, 0, 0]
    assert not any(array.any() for array in (step.terminated, step.truncated, step.over, *step.actions))
    assert step.present.tolist() == [1, 1, 0, 1]


LANES = np.array([2, 1, 0], np.int32)  # lanes 0 to 2 are at the positions 21, 20 and 23, counted over all groups
PLACES = np.array([21, 20, 23], np.int32)


def test_actions_are_put_where_the_env_expects_them():
    step, given = Step(), [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([4, 0])]
    assert step.group().put(given, LANES, 1, PLACES)
    assert step.actions[0].tolist() == [[0, 1, 2], [3, 4, 5], [9, 9, 9], [9, 9, 9]]
    assert step.actions[1].tolist() == [4, 0, 9, 9]


@pytest.mark.parametrize("given", [
    [np.zeros((2, 3), np.float32)],
    [np.zeros((2, 3), np.float64), np.zeros(2, np.int64)],
    [np.zeros((2, 3), np.float32), np.zeros(2, np.int32)],
    [np.zeros((2, 4), np.float32), np.zeros(2, np.int64)],
    [np.zeros((2, 3), np.float32), np.zeros((2, 1), np.int64)],
    [np.zeros((2, 6), np.float32)[:, ::2], np.zeros(2, np.int64)],
    [np.zeros((2, 3), np.float32), np.array([0, 5])],
    [np.zeros((2, 3), np.float32), np.array([-1, 0])],
], ids=lambda given: ", ".join(f"{each.dtype}{each.shape}" for each in given))  # fmt: skip
def test_actions_that_do_not_fit_are_not_put(given):
    step = Step()
    assert not step.group().put(given, LANES, 1, PLACES)
    assert all((array == 9).all() for array in step.actions)


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
