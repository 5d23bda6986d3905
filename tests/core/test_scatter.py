"""src_ext/_scatter.pyx and _actions.pyx: agent dicts to rows, actions to agent dicts."""

import gymnasium as gym
import numpy as np
import pytest
from support.recorder import BOX, Recorder
from support.rows import ListRows

from fastmarl.core.native._actions import ActionDicts, ModuleActions
from fastmarl.core.native._leaf_rows import LeafRows
from fastmarl.core.native._records import REMEMBERED
from fastmarl.errors import MultiAgentEnvError, ObservationError, RewardError, UnknownAgentError


def obs_of(*numbers):
    return np.array(numbers, np.float32)


@pytest.fixture
def recorder():
    return Recorder()


def test_random_steps_match_the_lists(rng):
    agents = ["a", "b", 3, (4, "x"), "c"]
    recorder, expected = Recorder(agents=agents), ListRows()
    recorder.reset({})
    for env_t in range(1, 300):
        seen = [agent for agent in rng.permutation(len(agents)) if rng.random() < 0.6]
        obs = {agents[i]: rng.normal(size=3).astype(np.float32) for i in seen}
        known = [agent for agent in agents if agent in recorder.table.envs[0].lane_of]
        rewards = {agent: float(rng.integers(-9, 9)) for agent in known if rng.random() < 0.8}
        lanes_before = dict(recorder.table.envs[0].lane_of)
        assert recorder.step(obs, rewards, {"__all__": False, **dict.fromkeys(obs, False)}) == 0
        for agent, reward in rewards.items():
            expected.pay(lanes_before[agent], reward)
        for agent, value in obs.items():
            expected.append(recorder.lane(agent), env_t, value)
    block = recorder.block
    n = recorder.rows.n
    assert n == len(expected.rows) > 500
    for row, (lane, env_t, obs, reward) in enumerate(expected.rows):
        assert (block.lane_R[row], block.env_t_R[row], block.reward_R[row]) == (lane, env_t, reward[0])
        np.testing.assert_array_equal(block.obs[0][row], obs)
    for lane in recorder.table.envs[0].lane_of.values():
        indices = expected.indices(lane)
        assert block.prev_R[indices].tolist() == [-1, *indices[:-1]]
        assert recorder.table.row_L[lane] == indices[-1]
        assert recorder.table.count_L[lane] == len(indices)


def test_agents_keep_their_lanes_when_many_join_them(recorder):
    recorder.reset({i: obs_of(i, 0, 0) for i in range(5)})
    lanes = [recorder.lane(i) for i in range(5)]
    recorder.step({i: obs_of(i, 1, 0) for i in range(40)})
    assert [recorder.lane(i) for i in range(5)] == lanes
    assert recorder.block.lane_R[5 : recorder.rows.n].tolist() == [recorder.lane(i) for i in range(40)]
    assert recorder.block.prev_R[5 : recorder.rows.n].tolist() == [*range(5), *[-1] * 35]


def test_nothing_past_the_last_row_is_touched(recorder):
    recorder.reset({"a": obs_of(1, 2, 3)})
    assert (recorder.block.obs[0][1:].view(np.uint8) == 0xAB).all()
    assert (recorder.block.reward_R[1:].view(np.uint8) == 0xAB).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a,
        lambda a: a.astype(np.float64),
        lambda a: a.tolist(),
        lambda a: np.repeat(a, 2)[::2],
        lambda a: a.astype(">f4"),
        lambda a: a.astype(np.int16),
        lambda a: a.astype(np.int32),
    ],
    ids=["same", "float64", "list", "strided", "swapped", "integers", "integers of equal size"],
)
def test_observations_that_numpy_casts_safely(recorder, make):
    recorder.reset({"a": make(obs_of(1, 2, 3))})
    np.testing.assert_array_equal(recorder.block.obs[0][0], obs_of(1, 2, 3))


DICT = gym.spaces.Dict({"x": BOX, "n": gym.spaces.Discrete(5)})


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (BOX, np.zeros(4, np.float32), r"expected float32 of shape \(3,\), got float32 of shape \(4,\)"),
        (BOX, np.zeros((3, 1), np.float32), r"got float32 of shape \(3, 1\)"),
        (BOX, np.zeros(3, complex), "got complex128"),
        (BOX, None, "got object"),
        (BOX, [[1, 2], [3]], "expected an array"),
        (gym.spaces.Box(0, 255, (3,), np.uint8), np.zeros(3, np.float32), "expected uint8"),
        (DICT, {"x": np.zeros(3, np.float32)}, "expected an entry 'n'|expected 2 entries"),
        (DICT, {"x": np.zeros(3, np.float32), "n": 1, "z": 0}, "expected 2 entries beside 'n', got 3"),
        (DICT, 7, "expected an entry 'n' in 7"),
    ],
)
def test_errors_of_unfit_observations_name_env_agent_and_problem(space, value, message):
    recorder = Recorder(space)
    with pytest.raises(ObservationError, match=message) as caught:
        recorder.reset({"agent_7": value})
    assert "env 0, agent 'agent_7', env step 0" in str(caught.value)


def test_dict_observations_and_scalars_reach_their_leaves():
    recorder = Recorder(DICT)
    recorder.reset({"a": {"n": 4, "x": obs_of(1, 2, 3)}, "b": {"x": obs_of(4, 5, 6), "n": np.int64(2)}})
    nested = recorder.block.layout.nest([array[:2] for array in recorder.block.obs])
    assert nested["n"].tolist() == [4, 2]
    assert nested["x"].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_rewards_of_every_kind_of_number(recorder):
    agents = "abcdefg"
    recorder.reset({agent: obs_of(0, 0, 0) for agent in agents})
    values = [1, 2.0, np.float32(3), np.float64(4), np.array([5.0]), np.array(6), True]
    recorder.step({}, dict(zip(agents, values, strict=True)))
    assert recorder.block.reward_R[:7].tolist() == [1, 2, 3, 4, 5, 6, 1]


@pytest.mark.parametrize("reward", [np.nan, np.inf, None, "1", np.zeros(2)])
def test_rewards_that_are_no_numbers(recorder, reward):
    recorder.reset({"a": obs_of(0, 0, 0)})
    with pytest.raises(RewardError, match="env 0, agent 'a', env step 1"):
        recorder.step({}, {"a": reward})


def test_early_rewards_beyond_those_remembered_are_unattributed():
    recorder = Recorder()
    recorder.reset({"a": obs_of(0, 0, 0)})
    recorder.step({}, {i: float(i) for i in range(REMEMBERED + 3)})
    assert recorder.table.unattributed_reward == 0 + 1 + 2
    assert list(recorder.table.record(0).early_rewards) == list(range(3, REMEMBERED + 3))


@pytest.mark.parametrize("entry", ["observation", "reward", "flag"])
def test_unknown_agents(entry):
    recorder = Recorder(agents=["a"])
    recorder.reset({"a": obs_of(0, 0, 0)})
    obs = {"ghost": obs_of(0, 0, 0)} if entry == "observation" else {}
    rewards = {"ghost": 1.0} if entry == "reward" else {}
    flags = {"__all__": False, "ghost": entry == "flag"}
    with pytest.raises(UnknownAgentError, match=r"agent 'ghost', env step 1: is not in possible_agents \['a'\]"):
        recorder.step(obs, rewards, flags)


def test_missing_all_key(recorder):
    recorder.reset({"a": obs_of(0, 0, 0)})
    with pytest.raises(MultiAgentEnvError, match="'__all__' in terminateds"):
        recorder.step({}, {}, {"a": False})


@pytest.mark.parametrize("key", ["__all__", "".join(["__", "all", "__"])], ids=["interned", "another object"])
@pytest.mark.parametrize(("terminated", "truncated", "flags"), [(True, False, 1), (False, True, 2), (True, True, 3)])
def test_all_ends_everybody_and_own_flags_win(recorder, key, terminated, truncated, flags):
    recorder.reset({"a": obs_of(1, 1, 1), "b": obs_of(2, 2, 2)})
    a, b = recorder.lane("a"), recorder.lane("b")
    own = {key: terminated, "a": True}, {key: truncated, "a": np.False_}
    assert recorder.step({"a": obs_of(3, 3, 3)}, {}, *own) == flags
    table = recorder.table
    assert (table.done_L[a], table.done_L[b]) == (1, flags)
    assert recorder.block.final_obs[0][table.final_L[a]].tolist() == [3, 3, 3]
    assert recorder.block.final_obs[0][table.final_L[b]].tolist() == [2, 2, 2]  # none came: the last one again
    assert table.envs[0].lane_of == {}
    assert recorder.rows.n == 2


def test_infos_are_private_copies_and_empty_ones_cost_nothing(recorder):
    recorder.reset({"a": obs_of(0, 0, 0), "b": obs_of(0, 0, 0)})
    info = {"position": np.zeros(2), "score": 1, "pair": ([0], 0)}
    recorder.step({"a": obs_of(1, 1, 1)}, infos={"a": info, "b": {}, "__common__": {"wind": 3}})
    info["position"][:] = 9
    info["pair"][0][0] = 9
    info["score"] = 2
    (env_t, lane, kept), common = recorder.table.envs[0].infos
    assert (env_t, lane, kept["score"], kept["position"].tolist()) == (1, recorder.lane("a"), 1, [0, 0])
    assert kept["pair"] == ([0], 0)
    assert common == (1, -1, {"wind": 3})


@pytest.mark.parametrize("n", [0, 1, 40])
def test_action_dicts_have_private_copies_of_the_promised_types(recorder, n):
    recorder.reset({i: obs_of(i, i, i) for i in range(n)})
    module = ModuleActions()
    dicts = ActionDicts(recorder.table, [module])
    env = recorder.table.envs[0]
    arrays = np.arange(n * 2, dtype=np.float32).reshape(n, 2)
    module.set_arrays(0, arrays)
    for i, action in dicts.of(env).items():
        assert action.dtype == np.float32 and action.tolist() == [2 * i, 2 * i + 1]
        action[:] = -1
    assert (arrays == np.arange(n * 2).reshape(n, 2)).all()
    module.set_values(0, [str(i) for i in range(n)])
    assert dicts.of(env) == {i: str(i) for i in range(n)}


def test_ids_created_at_every_step_are_not_confused(recorder):
    """Fresh strings often lie where the last step's lay: an address alone says nothing about who it was."""
    recorder.reset({"".join(["agent_", "0"]): obs_of(0, 0, 0), "".join(["agent_", "1"]): obs_of(1, 1, 1)})
    for env_t in range(1, 2000):
        key = "".join(["agent_", str(env_t % 2)])
        recorder.step({key: obs_of(env_t % 2, 0, 0)}, {key: 1.0})
        del key
    n = recorder.rows.n
    first = recorder.lane("agent_1")
    lanes = recorder.block.lane_R[2:n].tolist()
    assert [lane == first for lane in lanes] == [value == 1 for value in recorder.block.obs[0][2:n, 0].tolist()]


def test_memory_of_unequal_lengths_is_refused_entirely():
    rows = Recorder().rows
    capacity, final_capacity = rows.capacity, rows.final_capacity
    types = (np.int32, np.int64, np.int32, np.float64)
    for short in range(5):
        lengths = [2 * capacity - (i == short) for i in range(5)]
        leaf = LeafRows(np.zeros((lengths[4], 3), np.float32), (), ())
        arrays = [np.zeros(length, dtype) for length, dtype in zip(lengths, types, strict=False)]
        with pytest.raises(ValueError, match="of one block have different lengths"):
            rows.bind([leaf], *arrays)
    with pytest.raises(ValueError, match="dtype mismatch"):
        rows.bind([], *[np.zeros(2 * capacity, dtype) for dtype in (*types[:3], np.float32)])
    for short in range(3):
        lengths = [2 * final_capacity - (i == short) for i in range(3)]
        leaf = LeafRows(np.zeros((lengths[2], 3), np.float32), (), ())
        with pytest.raises(ValueError, match="of one block have different lengths"):
            rows.bind_finals([leaf], np.zeros(lengths[0], np.int64), np.zeros(lengths[1], np.int64))
    assert (rows.capacity, rows.final_capacity) == (capacity, final_capacity)


@pytest.mark.parametrize("equal", [True, np.int64(1), 1.0])
def test_ids_keep_the_type_with_which_they_joined(recorder, equal):
    recorder.reset({1: obs_of(0, 0, 0)})
    for _ in range(3):
        recorder.step({equal: obs_of(1, 1, 1)}, {equal: 1.0})
    assert [type(agent) for agent in recorder.table.envs[0].lane_of] == [int]
    assert type(recorder.table.agent_ids[recorder.lane(1)]) is int
