"""The kit that checks environments is itself checked: on good ones, and on ones that are broken on purpose."""

import gymnasium as gym
import numpy as np
import pytest

from fastmarl.efficiency_table import ReadyDicts
from fastmarl.errors import EnvCheckError, FastmarlError
from fastmarl.testing import check_env


class Good(ReadyDicts):
    """Agent "b" has other spaces than "a", comes late and goes early."""

    def __init__(self, config=None):
        self.possible_agents = ["a", "b"]
        box = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_spaces = {"a": box, "b": gym.spaces.Dict({"x": box, "n": gym.spaces.Discrete(3)})}
        self.action_spaces = {"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(-1, 1, (1,), np.float32)}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {"a": np.zeros(2, np.float32)}, {}

    def step(self, action_dict):
        self.t += 1
        obs = {"a": np.zeros(2, np.float32)}
        rewards, terminateds, truncateds = {"a": 1.0}, {"__all__": False}, {"__all__": self.t == 20}
        if 5 <= self.t <= 10:
            obs["b"] = {"x": np.ones(2, np.float32), "n": 1}
            terminateds["b"] = self.t == 10
        return obs, rewards, terminateds, truncateds, {}


def broken(**parts):
    """A class like Good whose step() returns other parts: functions of what Good returns there."""
    names = ("obs", "rewards", "terminateds", "truncateds", "infos")

    class Broken(Good):
        def step(self, action_dict):
            result = super().step(action_dict)
            return tuple(
                parts.get(name, lambda part: part)(part) for name, part in zip(names, result, strict=True)
            )  # fmt: skip

    return Broken


def test_a_good_environment_has_no_notes():
    report = check_env(Good, steps=200)
    assert set(report.agents) == {"a", "b"}
    assert (report.env_steps, report.episodes, report.notes) == (200, 10, ())
    assert report.agent_steps == 200 + 10 * 5


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (broken(obs=lambda obs: {**obs, "stranger": np.zeros(2, np.float32)}), "stranger"),
        (broken(obs=lambda obs: {**obs, "a": np.zeros(3, np.float32)}), r"agent 'a'.*\(2,\)"),
        (broken(rewards=lambda rewards: {"a": float("nan")}), "agent 'a'.*nan"),
        (broken(terminateds=lambda flags: {}), "__all__"),
        (broken(infos=lambda infos: None), "infos"),
    ],
    ids=["unknown agent", "shape", "reward", "no __all__", "infos"],
)
def test_each_mistake_is_named(env, message):
    with pytest.raises(FastmarlError, match=message):
        check_env(env, steps=200)


def test_no_agents_is_a_mistake():
    with pytest.raises(EnvCheckError, match="names no possible_agents"):
        check_env(ReadyDicts, {"agents": 0})


@pytest.mark.parametrize(
    ("env", "note"),
    [
        (broken(obs=lambda obs: {**obs, "a": np.full(2, 2, np.float32)}), "out of the bounds"),
        (broken(obs=lambda obs: {**obs, "a": np.full(2, np.nan, np.float32)}), "agent 'a': observation holds NaN"),
        (broken(truncateds=lambda flags: {"__all__": False}), "no episode came to an end"),
        (broken(rewards=lambda rewards: {"b": 1.0}), "belong to no action"),
    ],
    ids=["bounds", "nan", "endless", "rewards"],
)
def test_unlikely_things_are_noted(env, note):
    notes = check_env(env, steps=200).notes
    assert any(note in text for text in notes), notes


def test_closing_is_not_forgotten():
    closed = []

    class Closing(Good):
        def close(self):
            closed.append(self)

    check_env(Closing, steps=50)
    assert len(closed) == len(set(closed)) == 3
