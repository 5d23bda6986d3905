"""check_env on environments that are broken on purpose, each in one way: the finding must be named, and alone."""

import re

import gymnasium as gym
import numpy as np
import pytest

from fastmarl.errors import EnvCheckError
from fastmarl.testing import CountingEnv, DyingAgentsEnv, ReusingEnv
from fastmarl.testing.check import check_env
from fastmarl.testing.play import REPLAYED_STEPS

LENGTH = 10


def broken_step(index, change, *, at=3):
    """A CountingEnv whose step() changes one part of its result, from env step `at` on: change(part, env_t)."""

    class Broken(CountingEnv):
        def __init__(self, env_config=None):
            super().__init__(2, LENGTH)

        def step(self, actions):
            result = list(super().step(actions))
            if self.env_t >= at:
                result[index] = change(result[index], self.env_t)
            return tuple(result)

    return Broken


def broken(**methods):
    """A CountingEnv with other methods or attributes; methods get the original step or reset as `self.good`."""
    return type("Broken", (CountingEnv,), {"__init__": lambda self, config=None: CountingEnv.__init__(self), **methods})


def replace(agent, value):
    return lambda part, env_t: {**part, agent: value}


def without(key):
    return lambda part, env_t: {k: v for k, v in part.items() if k != key}


class LateReward(broken_step(2, replace("agent_1", True), at=LENGTH - 1)):
    """Agent 1 ends in the last step but one, and has a reward in the last one."""

    def step(self, actions):
        obs, *rest = super().step(actions)
        return without("agent_1")(obs, self.env_t) if self.env_t == LENGTH else obs, *rest


def raising_step(self, actions):
    if self.env_t == 4:
        raise ZeroDivisionError("no such wall")
    return CountingEnv.step(self, actions)


def unseeded_step(self, actions):
    obs, *rest = CountingEnv.step(self, actions)
    self.total_steps = getattr(self, "total_steps", 0) + 1
    return {**obs, "agent_1": obs["agent_1"] + self.total_steps}, *rest


def growing_step(self, actions):
    self.possible_agents = [*self.possible_agents, f"new_{len(self.possible_agents)}"]
    return CountingEnv.step(self, actions)


def failing_second_reset(self, *, seed=None, options=None):
    if self.env_t:
        raise RuntimeError("only once")
    return CountingEnv.reset(self)


def new_space(self, agent):
    self.asked = getattr(self, "asked", 0) + (agent == "agent_1")
    return gym.spaces.Box(0, 999.0 + self.asked * (agent == "agent_1"), (4,), np.float32)


def raising_close(self):
    raise OSError("socket is gone")


PROBLEMS = {
    # name: (env, kind, agent, env step, text)
    "shape": (broken_step(0, replace("agent_0", np.zeros(3, np.float32))), "observation", "agent_0", 3,
              r"observation: expected float32 of shape \(4,\), got float32 of shape \(3,\)"),
    "complex": (broken_step(0, replace("agent_1", np.zeros(4, complex))), "observation", "agent_1", 3,
                "got complex128 of shape"),
    "text": (broken_step(0, replace("agent_1", "left")), "observation", "agent_1", 3, "expected float32 of shape"),
    "ragged": (broken_step(0, replace("agent_1", [[1], []])), "observation", "agent_1", 3,
               "expected an array, got list"),
    "nan observation": (broken_step(0, replace("agent_0", np.full(4, np.nan, np.float32))), "bounds", "agent_0", 3,
                        "observation holds NaN"),
    "bounds": (broken_step(0, replace("agent_0", np.full(4, -7, np.float32))), "bounds", "agent_0", 3,
               "has values from -7.0 to -7.0, which are not all in Box"),
    "nan reward": (broken_step(1, replace("agent_0", float("nan"))), "reward", "agent_0", 3, "finite reward, got nan"),
    "no reward": (broken_step(1, replace("agent_0", None)), "reward", "agent_0", 3, "expected a number, got NoneType"),
    "flag": (broken_step(2, replace("agent_1", 0)), "flag", "agent_1", 3, "True or False in terminateds, got int 0"),
    "no __all__": (broken_step(2, without("__all__")), "__all__", None, 3, "expected the key '__all__' in terminateds"),
    "unknown observation": (broken_step(0, replace("ghost", np.zeros(4, np.float32))), "unknown agent", "ghost", 3,
                            "is in the observations, but not in possible_agents"),
    "unknown flag": (broken_step(3, replace("ghost", False)), "unknown agent", "ghost", 3, "is in the truncateds"),
    "info": (broken_step(4, replace("agent_1", "hit")), "info", "agent_1", 3, "expected a dict as info, got str 'hit'"),
    "reward of each": (broken_step(1, replace("agent_0", np.zeros(2))), "reward", "agent_0", 3,
                       "expected a number, got ndarray"),
    "__all__ observed": (broken_step(0, replace("__all__", np.zeros(4, np.float32))), "unknown agent", "__all__", 3,
                         "is in the observations, but not in possible_agents"),
    "infos": (broken_step(4, lambda part, env_t: None), "form", None, 3, "expected a dict keyed by agent id as infos"),
    "four values": (broken(step=lambda self, actions: CountingEnv.step(self, actions)[:4]), "form", None, 1,
                    "four values, as in old Gym"),
    "old reset": (broken(reset=lambda self, *, seed=None, options=None: CountingEnv.reset(self)[0]), "form", None, 0,
                  "only observations, as in old Gym"),
    "no seed": (broken(reset=lambda self: CountingEnv.reset(self)), "raised", None, 0, "reset.* raised TypeError"),
    "raises": (broken(step=raising_step), "raised", None, 5,
               r"step\(\) raised ZeroDivisionError\('no such wall'\) in .*test_env_check.py:\d+"),
    "raises in a library": (broken(step=lambda self, actions: np.array([]).max()), "raised", None, 1,
                            r"step\(\) raised ValueError.* in .*test_env_check.py:\d+"),
    "reset twice": (broken(reset=failing_second_reset), "raised", None, 0, r"reset\(\) raised RuntimeError"),
    "changing space": (broken(get_observation_space=new_space), "space", "agent_1", None,
                       r"observation space changed from Box\(0.0, 1000.0"),
    "unseeded": (broken(step=unseeded_step), "seed", "agent_1", 1,
                 r"different observations after the same reset\(seed"),
    "possible_agents": (broken(step=growing_step, observed=lambda self, env_t: self.possible_agents[:2]),
                        "possible_agents", None, None, "possible_agents changed from"),
    "close": (broken(close=raising_close), "close", None, None, r"close\(\) raised OSError\('socket is gone'\)"),
    "respawn": (lambda config: DyingAgentsEnv({"a": [(0, 99)], "b": [(0, 2), (5, 9)]}), "after the end", "b", 5,
                "observed again after it had finished in env step 2; omit it .*respawn is only for agents that return"),
    "late reward": (LateReward, "after the end", "agent_1", LENGTH,
                    "received a reward of 1.0 after it had finished in env step 9; .*late_rewards="),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_each_problem_is_named_and_nothing_else(name):
    env, kind, agent, env_t, text = PROBLEMS[name]
    report = check_env(env, steps=2 * LENGTH)
    (finding,) = report.problems
    assert not report.ok and not report, "`assert check_env(MyEnv)` in a test fails"
    assert (finding.kind, finding.agent_id, finding.env_t) == (kind, agent, env_t)
    assert re.search(text, finding.text), finding.text


def test_several_problems_are_all_found_and_counted():
    class Hopeless(broken_step(0, replace("agent_0", 5), at=1)):
        def step(self, actions):
            obs, rewards, *rest = super().step(actions)
            return obs, {**rewards, "agent_1": float("inf")}, *rest

    problems = {problem.kind: problem for problem in check_env(Hopeless, steps=LENGTH).problems}
    assert set(problems) == {"observation", "reward"}
    assert {problem.times for problem in problems.values()} == {LENGTH}


class NestedEnv(CountingEnv):
    """Dict and Tuple observations and actions."""

    def __init__(self, env_config=None):
        super().__init__(1, LENGTH)
        box = gym.spaces.Box(0, np.inf, (2,), np.float32)
        parts = gym.spaces.Tuple([box, gym.spaces.Discrete(99), gym.spaces.Text(5)])
        self.observation_spaces = {"agent_0": gym.spaces.Dict({"parts": parts, "mask": gym.spaces.MultiBinary(3)})}
        self.action_spaces = {
            "agent_0": gym.spaces.Dict({"go": gym.spaces.Discrete(3), "how": gym.spaces.Tuple([box])})
        }
        self.value = {"parts": (np.zeros(2, np.float32), 98, "abc"), "mask": np.ones(3, np.int8)}
        self.actions = []

    def step(self, actions):
        self.actions += actions.values()
        return super().step(actions)

    def _observations(self):
        return {"agent_0": self.value}


def test_nested_spaces_are_walked():
    env = NestedEnv()
    report = check_env(env)
    assert report.ok, str(report)
    assert {type(action["go"]) for action in env.actions} == {int}, "as runners give them"
    assert {action["how"][0].dtype for action in env.actions} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("value", "text"), [
    ({"parts": ()}, r"observation: expected a dict with the keys \['mask', 'parts'\], got the keys \['parts'\]"),
    ({"parts": (1, 2), "mask": [1, 0, 1]}, r"observation\['parts'\]: expected a tuple of 3 entries, got 2 entries"),
    ({"parts": ([1, 2], 99, "abc"), "mask": [1, 0, 1]}, r"observation\['parts'\]\[1\] has values from 99 to 99"),
    ({"parts": ([1, 2], 1, "toolong"), "mask": [1, 0, 1]}, r"observation\['parts'\]\[2\]: expected a value of Text"),
    ({"parts": ([1, 2], 1, "abc"), "mask": [1, 0]}, r"observation\['mask'\]: expected int8 of shape \(3,\)"),
    (np.zeros(3), "expected a dict with the keys .*, got ndarray"),
])  # fmt: skip
def test_problems_in_nested_observations_are_located(value, text):
    env = NestedEnv()
    env.value = value
    (problem,) = check_env(env, steps=LENGTH).problems
    assert re.search(text, problem.text), problem.text


# Before and without playing


class Unplayed(CountingEnv):
    """No reset() should come."""

    def reset(self, *, seed=None, options=None):
        raise AssertionError


class OldSpace:
    """As the gym package has them."""


OldSpace.__module__ = "gym.spaces.discrete"


OLD_GYM = "this space is from the old gym package; create it with gymnasium.spaces"


@pytest.mark.parametrize(("attributes", "expected", "text"), [
    ({"possible_agents": ["x", "x"]}, [("possible_agents", None)], ""),
    ({"possible_agents": [["x"]]}, [("possible_agents", None)], ""),
    ({"possible_agents": ["x", "__all__"]}, [("possible_agents", None)], ""),
    ({"action_spaces": {}}, [("space", "agent_0"), ("space", "agent_1")], ""),
    ({"observation_spaces": {"agent_0": 3, "agent_1": gym.spaces.Discrete(2)}}, [("space", "agent_0")], ""),
    ({"action_spaces": {"agent_0": gym.spaces.Discrete(2), "agent_1": OldSpace()}}, [("space", "agent_1")], OLD_GYM),
])  # fmt: skip
def test_without_agents_and_spaces_nothing_is_played(attributes, expected, text):
    env = Unplayed(2)
    vars(env).update(attributes)
    report = check_env(env)
    assert [(problem.kind, problem.agent_id) for problem in report.problems] == expected
    assert all(text in problem.text for problem in report.problems), str(report)
    assert report.env_steps == 0


@pytest.mark.parametrize("env", [5, "no_such_env", gym.Env, gym.Env(), lambda env_config: None])
def test_objects_other_than_multi_agent_envs_are_errors(env):
    with pytest.raises(EnvCheckError):
        check_env(env)


# Notes


class Silent(CountingEnv):
    """No agent is observed after the reset."""

    def __init__(self, env_config=None):
        super().__init__(2, 2 * LENGTH * LENGTH)

    def observed(self, env_t):
        return super().observed(env_t) if env_t == 0 else []


def editing_step(self, actions):
    actions.clear()
    return CountingEnv.step(self, actions)


def anybody(env_config):
    env = CountingEnv()
    env.possible_agents = []
    env.observed = lambda env_t: ["agent_0", "agent_1"]
    return env


class AliasingEnv(CountingEnv):
    """The second agent's observation is the env's own state."""

    def __init__(self, env_config=None):
        super().__init__(2, LENGTH)

    def reset(self, *, seed=None, options=None):
        self.state = np.zeros(4, np.float32)
        return super().reset()

    def step(self, actions):
        self.state = self.state + 1
        return super().step(actions)

    def _observations(self):
        return {**super()._observations(), "agent_1": self.state}


NOTES = {
    "dtype": (broken_step(0, replace("agent_0", np.zeros(4))), "dtype", "agent_0",
              "float64; it is converted to the float32"),
    "endless": (lambda config: CountingEnv(2, 10**9), "endless", None, "no episode ended within 200 env steps"),
    "reused arrays": (lambda config: ReusingEnv(CountingEnv()), "reused arrays", None, "overwrote arrays"),
    "changed actions": (broken(step=editing_step), "changed actions", None, "modified the actions"),
    "nobody left": (lambda config: DyingAgentsEnv({"a": [(0, 3)]}), "nobody left", None,
                    "every agent has finished, but"),
    "idle": (Silent, "idle", None, "no agent had an observation to act on in 100 env steps"),
    "never observed": (lambda config: PayingTheAbsent({"a": [(0, 99)], "b": []}), "never observed", "b",
                       "never observed in the episode"),
    "aliased state": (AliasingEnv, "aliased state", "agent_1",
                      "different observations after observations had been overwritten"),
    "idle for ever": (lambda config: DyingAgentsEnv({"a": [(0, 99)], "b": []}), "never observed", "b",
                      "is in possible_agents, but was not observed in 200 env steps"),
    "any agent": (anybody, "possible_agents", None, "possible_agents is empty, so any id may appear"),
}  # fmt: skip


class PayingTheAbsent(DyingAgentsEnv):
    def rewards_at(self, env_t):
        return {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("name", NOTES)
def test_odd_things_are_noted_and_are_no_problems(name):
    env, kind, agent, text = NOTES[name]
    report = check_env(env, steps=2 * LENGTH * LENGTH)
    (note,) = report.notes
    assert report.ok, str(report)
    assert (note.kind, note.agent_id) == (kind, agent)
    assert text in note.text


# What may look wrong, and is not


@pytest.mark.parametrize(
    ("stays", "options"),
    [
        ({"late": [(4, 99)], "early": [(0, 3)], "all": [(0, 99)]}, {}),
        ({"again": [(0, 2), (4, 6), (8, 99)], "all": [(0, 99)]}, {"respawn": True}),
        ({"visitor": [(5, 6)]}, {}),
    ],
    ids=["join and die", "respawn", "nobody at reset"],
)
def test_agents_may_come_and_go(stays, options):
    report = check_env(lambda env_config: DyingAgentsEnv(stays), **options)
    assert report.ok, str(report)
    assert set(report.agents) == set(stays)


def test_agents_that_have_finished_do_not_act():
    report = check_env(lambda env_config: DyingAgentsEnv({"early": [(0, 3)], "all": [(0, 99)]}), steps=LENGTH)
    assert report.agent_steps == 3 + LENGTH


def test_infos_may_have_common_ones():
    assert check_env(broken_step(4, replace("__common__", {"weather": "fine"})), steps=LENGTH).ok


@pytest.mark.parametrize("reward", [1, np.float32(1), np.array([1.0]), np.array(1), True])
def test_rewards_of_every_numeric_form_are_fine(reward):
    assert check_env(broken_step(1, replace("agent_0", reward)), steps=LENGTH).ok


def test_late_rewards_are_fine_if_the_options_allow_them():
    env = PROBLEMS["late reward"][0]
    assert check_env(env, respawn=True, late_rewards="drop")


def test_a_reward_that_comes_with_a_new_life_is_fine():
    class Pays(DyingAgentsEnv):
        def step(self, actions):
            obs, _, *others = super().step(actions)
            return obs, dict.fromkeys(obs, 1.0), *others

    report = check_env(lambda env_config: Pays({"again": [(0, 2), (4, 99)], "all": [(0, 99)]}), respawn=True)
    assert report.ok, str(report)


def test_overwritten_arrays_are_restored():
    env = AliasingEnv()
    table = np.ones(4, np.float32)
    env._observations = lambda: {"agent_0": table, "agent_1": table[:]}
    check_env(env)
    assert table.tolist() == [1, 1, 1, 1]


# How it plays


def test_the_env_is_reset_stepped_and_closed_as_promised():
    env = CountingEnv(2, LENGTH)
    calls = []
    reset, step = env.reset, env.step
    env.reset = lambda *, seed=None, options=None: calls.append(seed) or reset()
    env.step = lambda actions: calls.append(dict(actions)) or step(actions)
    env.close = lambda: calls.append("closed")
    generator = str(env.action_spaces["agent_0"].np_random.bit_generator.state)
    report = check_env(env, steps=2 * LENGTH + 5, seed=7)
    assert (report.env_steps, report.agent_steps, report.episodes) == (25, 50, 2)
    assert [seed for seed in calls if isinstance(seed, int | None)] == [7, None, None, 7, 7, 7]
    first, again = calls[1 : LENGTH + 1], calls[-LENGTH - 1 : -1]
    assert again == first, "the first episode is made again, and once more"
    assert {action for actions in first for action in actions.values()} == {0, 1, 2}
    assert calls[-1] == "closed"
    assert str(env.action_spaces["agent_0"].np_random.bit_generator.state) == generator


def test_every_env_is_made_with_a_config_of_its_own():
    class Taking(CountingEnv):
        def __init__(self, config):
            super().__init__(config.pop("agents"), LENGTH)

    given = {"agents": 3}
    report = check_env(Taking, given)
    assert not report.problems
    assert report.agents == ("agent_0", "agent_1", "agent_2")
    assert given == {"agents": 3}


def test_an_env_of_which_there_can_be_but_one_is_reported_on_all_the_same():
    closed = []

    class Only(CountingEnv):
        n_made = 0

        def __init__(self, config):
            Only.n_made += 1
            if Only.n_made > 1:
                raise OSError("the port is taken")
            super().__init__(2, LENGTH)

        def close(self):
            closed.append(self)

    report = check_env(Only)
    (note,) = report.notes
    assert not report.problems
    assert report.env_steps == 500
    assert "OSError('the port is taken'); a runner with several envs needs this" in str(note)
    assert len(closed) == 1


def test_only_the_first_steps_of_long_first_episodes_are_replayed():
    env = CountingEnv(1, 10**9)
    check_env(env, steps=3 * REPLAYED_STEPS)
    assert env.env_t == REPLAYED_STEPS


def test_the_report_is_short_however_many_agents_there_are():
    class Wrong(CountingEnv):
        def __init__(self, env_config=None):
            super().__init__(50, LENGTH)

        def _observations(self):
            return {agent: np.full(4, -1, np.float32) for agent in self.possible_agents}

    report = check_env(Wrong, steps=LENGTH)
    assert len(report.problems) == 50
    lines = str(report).splitlines()
    assert lines[:2] == [
        "Wrong: 50 problems, 0 notes",
        "  10 env steps, 500 actions of 50 agents, 1 episode finished",
    ]
    assert lines[2] == "  episodes can be replayed from their seeds and actions"
    assert lines[3].startswith("  problem  episode 0, env step 0, agent 'agent_0': observation has values from -1.0 to")
    assert lines[3].endswith("[11 times]")
    assert lines[-1] == "  problem  ... and 45 more like this"
    assert len(lines) == 9
