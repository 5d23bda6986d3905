"""Seeds, infos, wrappers and errors of Gymnasium's face."""

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode
from support.ledgered.worlds import WORLDS
from support.short_episodes import clock

import fastmarl
from fastmarl.errors import (
    ConfigError,
    MultiAgentEnvError,
    ObservationError,
    RewardError,
    RunnerStoppedError,
    RunningEpisodeError,
    UnknownAgentError,
)
from fastmarl.interop.gymnasium import AgentVectorEnv

SPREAD = {"env": "fastmarl.simple_spread", "num_envs": 2}


WRONG_REWARDS = {"no number": None, "a text": "3", "not a number": np.nan, "complex": 1 + 1j, "two": np.ones(2)}
WRONG_INFOS = {"no infos": None, "an info that is a list": {"b": [1]}, "an info for others": {"z": {"x": 1}}}


class Pair(fastmarl.MultiAgentEnv):
    """Two agents; its config says what it does wrong at step 3."""

    possible_agents = ("a", "b")
    observation_space, action_space = gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, config):
        self.wrong = config.get("wrong")
        self.seeds, self.is_closed = [], False

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.t = 0
        return dict.fromkeys("ab", np.zeros(1, np.float32)), {"a": {"x": 1}}

    def step(self, actions):
        self.t += 1
        obs, rewards = dict.fromkeys("ab", np.full(1, self.t, np.float32)), dict.fromkeys("ab", 1.0)
        if self.t == 3 and self.wrong == "shape":
            obs["b"] = np.zeros(2, np.float32)
        if self.t == 3 and self.wrong == "dtype":
            obs["b"] = np.array(["1"])
        if self.t == 3 and self.wrong == "agent":
            obs["c"] = obs["a"]
        if self.t == 3 and self.wrong == "error":
            raise OSError("a cable is out")
        infos = {"b": {"y": {"z": 2.5}}}
        if self.t == 3 and self.wrong in WRONG_REWARDS:
            rewards["b"] = WRONG_REWARDS[self.wrong]
        if self.t == 3 and self.wrong in WRONG_INFOS:
            infos = WRONG_INFOS[self.wrong]
        return obs, rewards, {"__all__": self.t == 5}, {"__all__": False}, infos

    def close(self):
        self.is_closed = True


def test_seeds_are_those_that_were_given():
    envs = AgentVectorEnv(Pair, 2, autoreset_mode="SameStep")
    inner = envs._rows.envs
    envs.reset(seed=7)
    envs.reset(seed=[3, 9])
    envs.reset()
    for _ in range(5):
        envs.step(np.zeros(4, int))
    assert [env.seeds for env in inner] == [[7, 3, None, None], [8, 9, None, None]]
    with pytest.raises(ConfigError, match="expected a seed for each of 2 envs, got 4"):
        envs.reset(seed=[1, 2, 3, 4])
    assert envs.get_attr("seeds") == (inner[0].seeds, inner[0].seeds, inner[1].seeds, inner[1].seeds)
    envs.close()
    assert all(env.is_closed for env in inner)


def test_infos_are_by_key_with_masks():
    envs = AgentVectorEnv(Pair, 2, autoreset_mode=AutoresetMode.SAME_STEP)
    _, infos = envs.reset()
    assert infos["x"].tolist() == [1, 0, 1, 0] and infos["_x"].tolist() == [True, False, True, False]
    for _ in range(4):
        *_, infos = envs.step(np.zeros(4, int))
        assert infos["y"]["z"].tolist() == [0, 2.5, 0, 2.5] and "final_obs" not in infos
    *_, infos = envs.step(np.zeros(4, int))
    assert infos["final_info"]["y"]["z"].tolist() == [0, 2.5, 0, 2.5] and "y" not in infos
    assert infos["_final_obs"].all() and [obs.item() for obs in infos["final_obs"]] == [5.0] * 4
    assert infos["x"].tolist() == [1, 0, 1, 0]


def test_gymnasiums_wrappers_count_returns():
    envs = gym.wrappers.vector.RecordEpisodeStatistics(AgentVectorEnv(Pair, 2))
    envs.reset(seed=0)
    found = []
    for _ in range(12):
        *_, infos = envs.step(np.zeros(4, int))
        if "episode" in infos:
            found.append((infos["episode"]["r"].tolist(), infos["episode"]["l"].tolist()))
    assert found == [([5.0] * 4, [5] * 4)] * 2


def test_results_do_not_change_later():
    envs = AgentVectorEnv(**SPREAD)
    observations, infos = envs.reset(seed=0)
    steps = [observations, infos["active"]]
    for _ in range(30):
        *arrays, infos = envs.step(envs.action_space.sample())
        steps += [*arrays, infos["active"]]
    copies = [np.copy(each) for each in steps]
    envs.step(envs.action_space.sample())
    envs.reset()
    assert all(np.array_equal(each, before) for each, before in zip(steps, copies, strict=True))
    assert envs.observation_space.contains(observations)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ("shape", ObservationError, r"env 0, agent 'b', env step 3: observation: expected float32 \[1\], got"),
        ("dtype", ObservationError, r"env 0, agent 'b', env step 3: observation: expected float32 \[1\], got"),
        ("agent", UnknownAgentError, "env 0, agent 'c', env step 3: agent is not in possible_agents"),
        ("error", OSError, "a cable is out"),
        *[(name, RewardError, "expected a (number as|finite) reward") for name in WRONG_REWARDS],
        ("no infos", MultiAgentEnvError, "env 0, env step 3: expected a dict keyed by agent id as infos"),
        (
            "an info that is a list",
            MultiAgentEnvError,
            r"env 0, agent 'b', env step 3: expected a dict as info, got \[1\]",
        ),
        ("an info for others", UnknownAgentError, "env 0, agent 'z', env step 3"),
    ],
)
def test_mistakes_of_envs_say_where(wrong, error, text):
    envs = AgentVectorEnv(Pair, 2, env_config={"wrong": wrong})
    envs.reset()
    for _ in range(2):
        envs.step(np.zeros(4, int))
    with pytest.raises(error, match=text) as raised:
        envs.step(np.zeros(4, int))
    assert wrong != "error" or "raised by step() of env 0" in raised.value.__notes__[0]
    with pytest.raises(RunningEpisodeError, match=r"call reset\(\) before step\(\), also after an error"):
        envs.step(np.zeros(4, int))
    with pytest.raises(ConfigError, match="reset_mask requires all envs to have been reset"):
        envs.reset(options={"reset_mask": np.arange(4) < 2})
    envs.reset()
    envs.step(np.zeros(4, int))


class Odd(Pair):
    """Agent a ends at step 2, the episode at step 4; infos differ in type and shape, and have names of ours."""

    def step(self, actions):
        self.t += 1
        there = ["a", "b"] if self.t <= 2 else ["b"]
        obs, rewards = dict.fromkeys(there, np.full(1, self.t, np.float32)), dict.fromkeys(there, 1.0)
        infos = {"a": {"n": 1, "x": np.ones(2), "active": "no"}, "b": {"n": 2.5, "x": np.ones(3), "final_obs": 7}}
        infos = {agent: infos[agent] for agent in there} | {"__common__": {"t": self.t}}
        return obs, rewards, {"a": self.t == 2, "__all__": self.t == 4}, {"__all__": False}, infos


def test_infos_of_any_kind_are_those_of_their_rows_and_episodes():
    envs = AgentVectorEnv(Odd, 1, autoreset_mode="SameStep")
    envs.reset()
    *_, infos = envs.step(np.zeros(2, int))
    assert infos["n"].tolist() == [1, 2.5] and [len(each) for each in infos["x"]] == [2, 3]
    assert infos["active"].tolist() == [True, True] and "final_obs" not in infos
    *_, infos = envs.step(np.zeros(2, int))
    assert infos["final_info"]["n"].tolist() == [1, 0] and infos["n"].tolist() == [0, 2.5]
    envs.step(np.zeros(2, int))
    *_, infos = envs.step(np.zeros(2, int))
    assert infos["x"].tolist() == [1, 0] and "t" not in infos  # of the reset
    assert infos["final_info"]["t"].tolist() == [0, 4]


def test_masks_in_infos_stay_when_other_envs_begin_an_episode():
    class Masked(Pair):
        def __init__(self, config):
            super().__init__(config)
            self.length = 2 if config.vector_index == 1 else 50

        def step(self, actions):
            obs, rewards, *_ = super().step(actions)
            masks = {agent: {"action_mask": np.array([1, 0])} for agent in "ab"}
            return obs, rewards, {"__all__": self.t >= self.length}, {"__all__": False}, masks

    for mode in ("SameStep", "NextStep"):
        envs = AgentVectorEnv(Masked, 2, autoreset_mode=mode)
        envs.reset()
        for _ in range(5):
            envs.step(np.zeros(4, int))
            assert envs._rows.action_masks()[:2].tolist() == [[True, False]] * 2


def test_mistakes_of_callers_are_errors():
    envs = AgentVectorEnv(**SPREAD)
    with pytest.raises(RunningEpisodeError, match=r"call reset\(\)"):
        envs.step(np.zeros(6, int))
    envs.reset()
    wrong = [[0, 0, 0, 0, 0, 5], [-1] * 6, [0.9] * 6, [np.nan] * 6]
    for actions in (np.zeros(5, int), np.zeros((6, 2), int), np.array(["a"] * 6), None, *map(np.array, wrong)):
        with pytest.raises(ConfigError, match=r"expected actions of Discrete\(5\) for 6 rows, got"):
            envs.step(actions)
    envs.step(np.zeros(6, np.uint8))
    with pytest.raises(ConfigError, match=r"expected actions of Box\(.* for 4 rows, got float64 of shape \(2, 4\)"):
        boxes(WORLDS["continuous actions"]).step(np.zeros((2, 4)))
    with pytest.raises(ConfigError, match=r"the only option is 'reset_mask', got \['map'\]"):
        envs.reset(options={"map": 1})
    with pytest.raises(ConfigError, match=r"expected a reset_mask of bool \[6\], got int64 \[2\]"):
        envs.reset(options={"reset_mask": np.zeros(2, int)})
    with pytest.raises(ConfigError, match="all agents of an env start an episode together"):
        envs.reset(options={"reset_mask": np.arange(6) == 0})
    for seed in (-1, 1.5, [1, None]):
        with pytest.raises(ConfigError, match="expected non-negative integers as seeds"):
            envs.reset(seed=seed)
    with pytest.raises(ConfigError, match=r"must be in one group, got \['p', 'q'\]"):
        AgentVectorEnv(
            lambda config: fastmarl.envs.ArrayEnv(1, {"p": ["a"], "q": ["b"]}, PAIR_SPACES[0], PAIR_SPACES[1])
        )
    envs.reset(options={"reset_mask": np.zeros(6, bool)})
    envs.close()
    for call in (envs.reset, lambda: envs.step(np.zeros(6, int))):
        with pytest.raises(RunnerStoppedError, match="these envs are closed"):
            call()
    with pytest.raises(ConfigError, match="must list all of them in possible_agents"):
        AgentVectorEnv(lambda config: Nameless())
    with pytest.raises(ValueError, match="'Sometimes' is not a valid AutoresetMode"):
        AgentVectorEnv(**SPREAD, autoreset_mode="Sometimes")


def boxes(world):
    envs = AgentVectorEnv(world, 2)
    envs.reset()
    return envs


PAIR_SPACES = [dict.fromkeys("pq", space) for space in (Pair.observation_space, Pair.action_space)]


class Nameless(fastmarl.MultiAgentEnv):
    observation_space, action_space = Pair.observation_space, Pair.action_space


def test_a_time_limit_truncates():
    envs = AgentVectorEnv(clock, 1, max_steps=2)
    envs.reset()
    flags = [envs.step(envs.action_space.sample())[2:4] for _ in range(2)]
    assert [(terminations.any(), truncations.all()) for terminations, truncations in flags] == [
        (False, False),
        (False, True),
    ]


@pytest.mark.slow
def test_errors_in_worker_processes_are_those_of_the_env():
    envs = AgentVectorEnv(Pair, 3, env_config={"wrong": "error"}, num_env_workers=2)
    pids = [env._worker.pid for env in envs._rows.envs]
    envs.reset(seed=1)
    for _ in range(2):
        for _ in range(2):
            assert envs.step(np.zeros(6, int))[1].tolist() == [1.0] * 6
        with pytest.raises(OSError, match="a cable is out") as raised:
            envs.step(np.zeros(6, int))
        assert "raised by step() of env 0" in "".join(raised.value.__notes__)
        with pytest.raises(RunningEpisodeError):
            envs.step(np.zeros(6, int))
        envs.reset()
    envs.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
