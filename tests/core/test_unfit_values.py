"""Values of envs that can't be recorded as they are: what is wrong, where; and what once went wrong silently."""

import threading

import gymnasium as gym
import numpy as np
import pytest
from support.recorder import BOX, Recorder
from support.scripted import counting, scripted

import fastmarl
from fastmarl.core.connectors.env_actions import EnvActions
from fastmarl.core.envs.values import misfits, reward_problem
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.core.store.env_states import EnvStates
from fastmarl.core.vector.workers.shm import Arrays
from fastmarl.core.vector.workers.slots import ResultSlots, action_slots
from fastmarl.errors import EnvStateError, ModuleOutputError, MultiAgentEnvError, ObservationError, RewardError
from fastmarl.testing import CountingEnv
from fastmarl.testing.check import check_env

spaces = gym.spaces
BYTES = spaces.Box(0, 255, (2,), np.uint8)
TENTH = np.array([0.1, 1 / 3, -7], np.float32)


class Raising:
    """Whatever is done with it raises."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array today")

    def __bool__(self):
        raise RuntimeError("neither")

    def __repr__(self):
        raise RuntimeError("no text")


def begun(space=BOX):
    recorder = Recorder(space)
    recorder.reset({"a": np.zeros(space.shape, space.dtype)})
    return recorder


# Byte order.


@pytest.mark.parametrize("space_order", "<>")
@pytest.mark.parametrize("value_order", "<>")
@pytest.mark.parametrize("size", [4, 8])
def test_both_byte_orders_are_read_as_numbers(space_order, value_order, size):
    recorder = Recorder(spaces.Box(-9, 9, (3,), np.dtype(f"{space_order}f4")))
    recorder.reset({"a": TENTH.astype(f"{value_order}f{size}")})
    assert recorder.block.obs[0].dtype == np.float32
    np.testing.assert_array_equal(recorder.block.obs[0][0], TENTH)


def test_both_byte_orders_pass_through_shared_memory():
    space = spaces.Box(-9, 9, (3,), np.dtype(">f4"))
    results, actions = ResultSlots({"a": space}, space, Arrays(None).cut), action_slots({"a": space}, Arrays(None).cut)
    for order in "<>":
        value = TENTH.astype(f"{order}f4")
        assert results.write(({"a": value}, {}, {}, {}))
        np.testing.assert_array_equal(results.read({})[0]["a"], TENTH)
        assert results.write_state(value)
        np.testing.assert_array_equal(results.state, TENTH)
        if actions.write({"a": value}):
            np.testing.assert_array_equal(actions.read()["a"], TENTH)


@pytest.mark.parametrize("mode", [{}, {"random_actions": True}], ids=str)
def test_spaces_of_the_other_byte_order_are_sampled(mode):
    action_space = spaces.Box(-2, 2, (2,), np.dtype(">f4"))
    env = scripted(counting(1, 5), space=spaces.Box(-9, 9, (3,), np.dtype(">f4")), action_space=action_space,
                   see=lambda agent, t: TENTH.astype(">f4") * (t + 1))  # fmt: skip
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, policies={"p"}))
    (episode,) = runner.sample(num_timesteps=5, **mode)
    received = [actions["agent_0"] for actions in runner.env.envs[0].actions]
    assert len(received) == 5 and all(map(action_space.contains, received))
    seen = episode.agent_episodes["agent_0"].get_observations()
    np.testing.assert_array_equal(seen, TENTH * np.arange(1, 7, dtype=np.float32)[:, None])


# Integers.


@pytest.mark.parametrize("value", [[0, 300], np.array([-1, 0]), np.array([0, 256], np.uint16)], ids=str)
def test_integers_out_of_range_do_not_wrap(value):
    with pytest.raises(ObservationError, match=r"expected uint8 of shape \(2,\), got .* with values from"):
        begun(BYTES).step({"a": value})
    assert not ResultSlots({"a": BYTES}, None, Arrays(None).cut).write(({"a": value}, {}, {}, {}))
    assert [misfit.kind for misfit in misfits(BYTES, value)] == ["observation"]
    with pytest.raises(EnvStateError, match="with values from"):
        EnvStates(0, BYTES).add(value)


@pytest.mark.parametrize("value", [[0, 255], np.array([True, False]), np.array([7, 255], np.uint64)], ids=str)
def test_integers_in_range_are_converted(value):
    recorder = begun(BYTES)
    recorder.step({"a": value})
    assert recorder.block.obs[0][1].tolist() == np.asarray(value).astype(int).tolist()
    assert not [misfit for misfit in misfits(BYTES, value) if misfit.kind == "observation"]


def test_actions_out_of_range_do_not_wrap():
    actions = EnvActions("p", BYTES, normalize=False, clip=False, as_arrays=True)
    for raw in ([[0, 300]], [[-1, 0]], [[256.5, 1.0]], [[np.nan, 1.0]]):
        with pytest.raises(ModuleOutputError, match="module 'p': expected actions that fit in uint8"):
            actions.set(0, 1, {"actions": np.array(raw)})
    actions.set(0, 1, {"actions": np.array([[3.0, 255.0]])})
    assert actions.take()[1][0].tolist() == [[3, 255]]
    larger = EnvActions("p", spaces.MultiDiscrete([200, 2], np.uint8, start=[100, 0]), normalize=False, clip=False)
    with pytest.raises(ModuleOutputError, match="that fit in uint8"):
        larger.set(0, 1, {"actions": np.array([[199, 0]])})


# Dicts with int keys.


def test_int_keys_stay_keys():
    action_space = spaces.Dict({0: spaces.Discrete(2), 1: spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))])})

    config = fastmarl.EnvRunnerConfig(env=scripted(counting(1, 5), action_space=action_space), policies={"p"})
    runner = fastmarl.MultiAgentEnvRunner(config)
    for mode in ({}, {"explore": False}, {"random_actions": True}):
        (episode,) = runner.sample(num_episodes=1, **mode)
        actions = episode.agent_episodes["agent_0"].get_actions()
        assert type(actions) is dict and list(actions) == [0, 1]
        assert type(actions[1]) is tuple and actions[1][1].shape == (5, 2)


# Objects.


def test_objects_are_private_copies():
    recorder = Recorder(spaces.Sequence(spaces.Discrete(9)))
    value = [1, [2]]
    recorder.reset({"a": value})
    value[1].append(3)
    assert recorder.block.obs[0][0] == [1, [2]]


def test_objects_that_cannot_be_copied():
    with pytest.raises(ObservationError, match="env 0, agent 'a', env step 0: observation: can't be copied"):
        Recorder(spaces.Text(9)).reset({"a": threading.Lock()})


# Errors say where.


@pytest.mark.parametrize("reward", [10**400, 10**5000, -(10**400), Raising(), np.zeros(2), "1"], ids=type)
def test_odd_rewards(reward):
    with pytest.raises(RewardError, match="env 0, agent 'a', env step 1: expected a number"):
        begun().step({}, {"a": reward})
    assert "expected a number" in reward_problem(reward)


@pytest.mark.parametrize(
    "flag", [np.array([True, False]), np.zeros(0, bool), Raising()], ids=["two", "none", "raising"]
)
@pytest.mark.parametrize("name", ["terminateds", "truncateds"])
@pytest.mark.parametrize("key", ["a", "__all__"])
def test_odd_flags(key, name, flag):
    flags = {"terminateds": {"__all__": False}, "truncateds": {}}
    flags[name] = {**flags[name], key: flag}
    with pytest.raises(MultiAgentEnvError, match=f"env 0, agent '{key}', env step 1: expected True or False in {name}"):
        begun().step({}, {}, **flags)


def test_observations_that_raise():
    with pytest.raises(ObservationError, match=r"env 0, agent 'a', env step 1: .*no array today") as caught:
        begun().step({"a": Raising()})
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("value", [threading.Lock(), [threading.Lock()]], ids=["direct", "nested"])
def test_infos_that_cannot_be_copied_are_kept_as_they_are(value):
    """As RLlib keeps them, and as check_env() accepts them; other values of the same info are copies."""
    other = [1]
    env = CountingEnv()
    step = env.step
    env.step = lambda actions: (*step(actions)[:4], {"agent_0": {"value": value, "other": other}})
    assert check_env(env).ok
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=lambda config: env)) as runner:
        (episode,) = runner.sample(num_timesteps=3)
    info = episode.get_infos(-1)["agent_0"]
    assert info["value"] is value
    assert info["other"] == other
    assert info["other"] is not other


def test_layouts_are_in_the_machine_s_byte_order():
    assert RowLayout(spaces.Box(0, 9, (2,), np.dtype(">i4"))).leaves[0].dtype == np.int32
