"""check_env() and the runner have one verdict: what one refuses, the other names."""

import re

import gymnasium as gym
import numpy as np
import pytest

import fastmarl
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.envs.form import RETURNED
from fastmarl.errors import FastmarlError, MultiAgentEnvError
from fastmarl.testing import CountingEnv, check_env

# Global states, which a runner asks for only with record_env_state=True: what it refuses then is a note.


def with_state(says, space=None):
    class Stateful(CountingEnv):
        state_space = space

        def __init__(self, config=None):
            super().__init__(1, 5)

        def state(self):
            return says(self.env_t)

    return Stateful


def raising_state(env_t):
    raise KeyError("no state today")


class RaisingSpace(with_state(lambda t: np.zeros(2))):
    def __init__(self, config=None):
        super().__init__()

    @property
    def state_space(self):
        raise KeyError("no space today")


FINE_STATES = {
    "arrays": with_state(lambda t: np.full(2, t, np.float32)),
    "ints for floats": with_state(lambda t: [t, t], gym.spaces.Box(0, 9, (2,), np.float32)),
    "numbers": with_state(lambda t: t, gym.spaces.Discrete(9)),
    "none": CountingEnv,
}
UNFIT_STATES = {
    "that grow": with_state(lambda t: np.zeros(2 + t)),
    "of another shape": with_state(lambda t: np.zeros(3), gym.spaces.Box(0, 9, (2,), np.float64)),
    "that turn complex": with_state(lambda t: np.zeros(2, complex if t == 3 else float)),
    "None": with_state(lambda t: None),
    "ragged": with_state(lambda t: [[1], [1, 2]]),
    "of a Dict space": with_state(lambda t: {"t": t}, gym.spaces.Dict({"t": gym.spaces.Discrete(9)})),
    "that raise": with_state(raising_state),
    "of a space that raises": RaisingSpace,
}


class Clocks(ArrayEnv):
    """Two agents see the time; episodes take 6 steps. `says` makes what state() returns of good states, `infos` those
    of a step at a time."""

    def __init__(self, num_envs, says=lambda states: states, infos=lambda t: []):
        spaces = gym.spaces.Box(0, 9, (1,), np.float32), gym.spaces.Discrete(2)
        super().__init__(num_envs, {"all": ["a", "b"]}, *({"all": space} for space in spaces))
        self.t = np.zeros(num_envs, np.int64)
        self.says, self.infos = says, infos

    def reset(self, env_indices, out, *, seeds=None):
        self.t[env_indices] = 0
        out.groups["all"].obs[env_indices] = 0

    def step(self, actions, out):
        self.t += 1
        out.groups["all"].obs[:] = self.t[:, None, None]
        out.truncated[:] = self.t == 6
        out.infos.extend(self.infos(self.t[0]))

    def state(self):
        return self.says(np.stack([self.t, 100 + self.t], 1))


FINE_BATCH_STATES = {"rows": lambda states: states, "lists": lambda states: states.tolist()}
UNFIT_BATCH_STATES = {
    "one row more": (lambda states: np.vstack([states, states[:1]]), r"\[3, \.\.\.\].*got int64 of shape \(4, 2\)"),
    "one row less": (lambda states: states[1:], r"\[3, \.\.\.\].*got int64 of shape \(2, 2\)"),
    "no rows": (lambda states: np.int64(3), r"\[3, \.\.\.\].*got int64 of shape \(\)"),
    "None": (lambda states: None, r"\[3, \.\.\.\].*got object of shape \(\)"),
    "ragged": (lambda states: [[1], [1, 2], [3]], "expected an array from state"),
    "rows that shrink": (lambda states: states[:, int(states[0, 0] > 1) :], r"shape \(2,\), got int64 of shape \(1,\)"),
}


def sample(env, **options):
    """The text of the error that a runner raises, in a list, or none."""
    try:
        with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, **options)) as runner:
            runner.sample(num_timesteps=60)
    except (FastmarlError, KeyError) as error:
        return [error.args[3] if len(error.args) == 4 else str(error)]
    return []


@pytest.mark.parametrize("name", FINE_STATES)
def test_states_that_can_be_recorded_are_not_noted(name):
    report = check_env(FINE_STATES[name](), steps=30)
    assert report.ok and not report.notes, str(report)
    assert name == "none" or not sample(FINE_STATES[name], record_env_state=True)


@pytest.mark.parametrize("name", UNFIT_STATES)
def test_states_that_can_not_be_recorded_are_noted(name):
    report = check_env(UNFIT_STATES[name], steps=30)
    (note,) = report.notes
    (refused,) = sample(UNFIT_STATES[name], record_env_state=True)
    assert report.ok and note.kind == "state" and refused in note.text, str(report)
    assert not sample(UNFIT_STATES[name])


@pytest.mark.parametrize("name", FINE_BATCH_STATES)
def test_states_of_a_batch_that_can_be_recorded_are_not_noted(name):
    report = check_env(Clocks(3, FINE_BATCH_STATES[name]), steps=10)
    assert report.ok and not report.notes, str(report)


@pytest.mark.parametrize("name", UNFIT_BATCH_STATES)
def test_states_of_a_batch_that_can_not_be_recorded_are_noted(name):
    says, text = UNFIT_BATCH_STATES[name]
    report = check_env(Clocks(3, says), steps=10)
    (note,) = report.notes
    (refused,) = sample(lambda config: Clocks(3, says), record_env_state=True, num_envs_per_env_runner=3)
    assert report.ok and note.kind == "state" and refused in note.text, str(report)
    assert re.search(text, refused)


# Infos of a batch.

FINE_INFOS = {
    "of agents and all": [(0, "a", {"t": 1}), (2, "b", {}), (1, "__common__", {"x": None})],
    "by NumPy's numbers": [(np.int64(2), "a", {})],
    "as a list": [[0, "a", {}]],
}
UNFIT_INFOS = {
    "of an env from the end": (-1, "a", {}),
    "of an env too many": (3, "a", {}),
    "of no env": ("0", "a", {}),
    "of an unknown agent": (0, "c", {}),
    "of an agent that is no key": (0, [], {}),
    "that are no dict": (0, "a", [("x", 1)]),
    "None": (0, "a", None),
    "too few": (0, {}),
    "alone": {},
    "a number": 5,
}


def informing(entries):
    return lambda config: Clocks(3, infos=lambda t: entries if t == 3 else [])


@pytest.mark.parametrize("name", FINE_INFOS)
def test_infos_of_a_batch_are_recorded(name):
    report = check_env(Clocks(3, infos=lambda t: FINE_INFOS[name]), steps=10)
    assert report.ok and not report.notes, str(report)
    assert not sample(informing(FINE_INFOS[name]), num_envs_per_env_runner=3)


@pytest.mark.parametrize("name", UNFIT_INFOS)
def test_infos_that_a_batch_can_not_have_are_refused(name):
    make = informing([(0, "a", {}), UNFIT_INFOS[name]])
    report = check_env(make(None), steps=10)
    (problem,) = report.problems
    (refused,) = sample(make, num_envs_per_env_runner=3)
    assert problem.kind == "info" and problem.text == refused
    assert "expected (env index from 0 to 2, agent id or '__common__', dict) in out.infos, got" in refused


def test_infos_of_a_batch_are_refused_while_some_of_its_envs_rest():
    entries = iter([[]] * 8 + [[5]])  # in the second episode, which is one env's
    batch = Clocks(3, infos=lambda t: next(entries, []))
    options = {"env": lambda config: batch, "num_envs_per_env_runner": 3}
    with fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**options)) as runner:
        with pytest.raises(MultiAgentEnvError, match=r"in out.infos, got 5"):
            runner.sample(num_episodes=4)
        assert runner.sample(num_episodes=4)


# Whole envs.


def stepping(**parts):
    """A CountingEnv of "agent_0" whose third step brings other parts: observations, rewards, ..."""

    class Stepping(CountingEnv):
        def __init__(self, config=None):
            super().__init__(1, 5)

        def step(self, actions):
            result = dict(zip(RETURNED["step"], super().step(actions), strict=True))
            return tuple((result | parts).values()) if self.env_t == 3 else tuple(result.values())

    return Stepping


ME = "agent_0"
UNFIT_STEPS = {
    "an unknown agent observed": stepping(observations={"x": np.zeros(3)}),
    "an unknown agent's reward": stepping(rewards={"x": 1.0}),
    "an unknown agent's flag": stepping(terminateds={"x": True, "__all__": False}),
    "a text as observation": stepping(observations={ME: "x"}),
    "another shape": stepping(observations={ME: np.zeros((7, 7), np.float32)}),
    "None as reward": stepping(rewards={ME: None}),
    "a reward that is no number": stepping(rewards={ME: np.nan}),
    "two rewards": stepping(rewards={ME: [1.0, 2.0]}),
    "no __all__": stepping(terminateds={}, truncateds={}),
    "None as flags": stepping(terminateds=None),
    "an array as flag": stepping(terminateds={ME: np.zeros(2, bool), "__all__": False}),
    "a list as infos": stepping(infos=[]),
    "a text as info": stepping(infos={ME: "x"}),
}


@pytest.mark.parametrize("name", UNFIT_STEPS)
def test_steps_that_a_runner_refuses_are_problems(name):
    """The problem is the same agent's, in the same step."""
    report = check_env(UNFIT_STEPS[name], steps=20)
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=UNFIT_STEPS[name]))
    with runner, pytest.raises(MultiAgentEnvError) as refused:
        runner.sample(num_timesteps=60)
    _, agent, env_t, _ = refused.value.args
    assert (agent, env_t) in [(problem.agent_id, problem.env_t) for problem in report.problems], str(report)


@pytest.mark.needs("pettingzoo")
def test_the_check_and_the_runner_agree_on_pettingzoo_envs():
    from support.hostile_envs import PARALLEL, TURN_BASED

    for name, make in {**PARALLEL, **TURN_BASED}.items():
        report, refused = (
            check_env(lambda config, make=make: make(), steps=40),
            sample(lambda config, make=make: make()),
        )
        assert report.ok is not bool(refused), (name, refused, str(report))
