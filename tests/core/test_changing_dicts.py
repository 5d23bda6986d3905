"""Envs' dicts that change while they are being read: values with code of their own, keys, mapping functions.

What is read is what was there when the walk began, or what is there now, but never memory that was given back.
"""

import gc

import gymnasium as gym
import numpy as np
import pytest
from support.recorder import Recorder

from fastmarl.core.native._step_keys import StepKeys, names_others
from fastmarl.core.vector.workers.shm import Arrays
from fastmarl.core.vector.workers.slots import ResultSlots

AGENTS = ["a", "b", "c", "d"]
BOX = gym.spaces.Box(-np.inf, np.inf, (40,), np.float32)


def fresh(agent):
    """An equal id that nothing else holds."""
    return "".join(["agent ", agent])


def observation(number):
    return np.full(40, number, np.float32)


class Spoiler:
    """Gives back what dicts hold, and has other things lie where it lay."""

    def __init__(self):
        self.dicts, self.later = [], []

    def __call__(self):
        for spoiled in self.dicts:
            spoiled.clear()
            gc.collect()
            self.later += [np.full(40, 77, np.float32) for _ in range(50)]
            self.later += ["".join(["other ", str(i)]) for i in range(50)]
            self.later += [float(i) + 0.5 for i in range(50)]


class Hostile:
    """Whatever is done with it, `spoil` runs first; it stands for `value`."""

    def __init__(self, spoil, value):
        self.spoil, self.value = spoil, value

    def __array__(self, dtype=None, copy=None):
        self.spoil()
        return np.array(self.value)

    def __bool__(self):
        self.spoil()
        return bool(self.value)


class HostileId:
    """An agent's id that runs code when it is looked up."""

    def __init__(self, spoil, name):
        self.spoil, self.name = spoil, name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        self.spoil()
        return isinstance(other, HostileId) and self.name == other.name


@pytest.fixture
def spoil():
    return Spoiler()


def begun():
    recorder = Recorder(BOX)
    recorder.reset({fresh(agent): observation(0) for agent in AGENTS})
    return recorder


def recorded(recorder):
    rows = recorder.block.obs[0][len(AGENTS) : recorder.rows.n]
    assert (rows == rows[:, :1]).all()
    return rows[:, 0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1, 3])
def test_observations_that_vanish_while_one_is_made_an_array(spoil, at):
    recorder = begun()
    obs = {fresh(agent): observation(i) for i, agent in enumerate(AGENTS)}
    obs[fresh(AGENTS[at])] = Hostile(spoil, observation(at))
    spoil.dicts = [obs]
    recorder.step(obs)
    assert recorded(recorder) == [0, 1, 2, 3]


def test_observations_that_vanish_while_an_agent_joins(spoil):
    recorder = begun()
    recorder.table._module_for = lambda agent, env: spoil() or 0
    obs = {"new": observation(9), **{fresh(agent): observation(i) for i, agent in enumerate(AGENTS)}}
    spoil.dicts = [obs]
    recorder.step(obs)
    assert recorded(recorder) == [9, 0, 1, 2, 3]


@pytest.mark.slow
def test_observations_that_vanish_while_there_is_no_room(spoil):
    recorder = Recorder(BOX)
    make_room = recorder.block.make_room
    recorder.block.make_room = lambda *more: spoil() or make_room(*more)
    obs = {i: observation(i) for i in range(300)}
    spoil.dicts = [obs]
    recorder.reset(obs)
    assert recorder.block.obs[0][:300, 0].tolist() == list(range(300))


def test_last_observations_that_vanish(spoil):
    recorder = begun()
    obs = {fresh(agent): observation(i) for i, agent in enumerate(AGENTS)}
    obs[fresh("a")] = Hostile(spoil, observation(0))
    spoil.dicts = [obs]
    recorder.step(obs, terminateds={"__all__": True})
    assert recorder.block.final_obs[0][: len(AGENTS), 0].tolist() == [0, 1, 2, 3]


def test_ids_that_run_code_when_they_are_compared(spoil):
    recorder = Recorder(BOX)
    recorder.reset({HostileId(lambda: None, agent): observation(0) for agent in AGENTS})
    obs = {HostileId(spoil, agent): observation(i) for i, agent in enumerate(AGENTS)}
    spoil.dicts = [obs]
    recorder.step(obs)
    assert recorded(recorder) == [0, 1, 2, 3]


def test_rewards_that_vanish_while_one_is_made_a_number(spoil):
    recorder = begun()
    rewards = {fresh("b"): Hostile(spoil, 5.0), fresh("a"): 1.0}
    spoil.dicts = [rewards]
    recorder.step({}, rewards)
    assert recorder.block.reward_R[:2].tolist() == [0, 5]


def test_flags_that_vanish_while_one_is_looked_at(spoil):
    recorder = begun()
    flags = {"__all__": Hostile(lambda: None, False), fresh("b"): Hostile(spoil, True), fresh("a"): True}
    spoil.dicts = [flags]
    recorder.step({}, {}, flags)
    assert set(recorder.table.envs[0].lane_of) == {fresh("a"), fresh("c"), fresh("d")}


def test_infos_that_vanish_while_ids_are_compared(spoil):
    recorder = Recorder(BOX)
    recorder.reset({HostileId(lambda: None, agent): observation(0) for agent in AGENTS})
    infos = {HostileId(spoil, "b"): {"n": 1}, HostileId(spoil, "a"): {"n": 2}}
    spoil.dicts = [infos]
    recorder.step({}, infos=infos)
    assert recorder.table.envs[0].infos[0][2] == {"n": 1}


@pytest.mark.parametrize("part", range(4))
def test_dicts_that_change_while_a_worker_writes_do_no_harm(spoil, part):
    ids = [HostileId(lambda: None, agent) for agent in AGENTS]
    slots = ResultSlots(dict.fromkeys(ids, BOX), None, Arrays(None).cut)
    values = [lambda i: observation(i), float, lambda i: i == 1, lambda i: i == 2]
    result = [{HostileId(lambda: None, agent): values[j](i) for i, agent in enumerate(AGENTS)} for j in range(4)]
    result[part] = {HostileId(spoil, agent): values[part](i) for i, agent in enumerate(AGENTS)}
    spoil.dicts = [result[part]]
    slots.write((*result, {}))  # it may fit or not


def test_a_worker_s_observation_vanishes_while_it_is_made_an_array(spoil):
    slots = ResultSlots(dict.fromkeys(AGENTS, BOX), None, Arrays(None).cut)
    obs = {"b": Hostile(spoil, observation(1)), "a": observation(0)}
    spoil.dicts = [obs]
    assert slots.write((obs, {}, {}, {}, {}))
    assert slots.read({})[0]["b"][0] == 1


def test_steps_are_compared_while_they_change(spoil):
    ids = [HostileId(lambda: None, agent) for agent in AGENTS]
    keys = StepKeys()
    keys.remember(*[dict.fromkeys(ids, False)] * 4)
    entries = {HostileId(spoil, agent): Hostile(spoil, True) for agent in AGENTS}
    spoil.dicts = [entries]
    assert not keys.same(dict.fromkeys(ids, False), dict.fromkeys(ids, False), entries, entries)
    spoil.dicts = [entries := {HostileId(spoil, agent): 0 for agent in AGENTS}]
    assert not names_others(set(ids), entries)


def test_a_step_is_not_recorded_within_another():
    recorder = begun()
    again = Hostile(lambda: recorder.step({fresh("a"): observation(1)}), observation(0))
    with pytest.raises(RuntimeError, match="can't be recorded from within"):
        recorder.step({fresh("a"): again})
    recorder.step({fresh("a"): observation(3)})
    assert recorder.block.obs[0][recorder.rows.n - 1, 0] == 3
