"""Spaces with a `contains()` of their own: what they accept is recorded the same way in every protocol."""

import gymnasium as gym
import numpy as np
import pytest
from support.scripted import Scripted, Step

import fastmarl
from fastmarl.core.envs.adapters import as_multi_agent_env
from fastmarl.core.envs.gymnasium_single import SingleGymnasiumEnv
from fastmarl.core.spaces.layout import serves
from fastmarl.errors import ConfigError, ObservationError
from fastmarl.testing.check import check_env

spaces = gym.spaces
DISCRETE = spaces.Discrete(2)
LENGTH = 3


class Text(np.ndarray):
    """A number that is also a text, like multigrid's missions."""


class Texts(spaces.MultiDiscrete):
    """Texts by number; its class would take int64 [1] instead."""

    def __init__(self):
        super().__init__([9])

    def contains(self, x):
        return isinstance(x, Text)


class Columns(spaces.Box):
    """Takes lists of columns; its class would take float32 [2]."""

    def contains(self, x):
        return isinstance(x, list) and np.shape(x) == (2, 1)


class Floats(spaces.Discrete):
    def contains(self, x):
        return isinstance(x, float) and x.is_integer()


class Open(spaces.Dict):
    """Takes dicts with further entries, and an array instead of a number."""

    def contains(self, x):
        return set(self.spaces) <= set(x)


class Longer(spaces.Tuple):
    def contains(self, x):
        return len(x) >= len(self.spaces)


NUMBER = spaces.Discrete(9)
KINDS = {
    "texts": (Texts(), lambda t: np.asarray(t).view(Text), lambda t: np.array([t], np.int64)),
    "columns": (Columns(0, 9, (2,)), lambda t: [[t], [t + 1]], lambda t: np.array([t, t + 1], np.float32)),
    "floats": (Floats(9), float, np.int64),
    "dict": (
        Open(n=NUMBER, box=spaces.Box(0, 9, (1,), np.uint8)),
        lambda t: {"box": [[t]], "more": "text", "n": np.array([t])},
        lambda t: {"box": np.array([t], np.uint8), "n": np.int64(t)},
    ),
    "tuple": (Longer([NUMBER, NUMBER]), lambda t: (t, t + 1, "more"), lambda t: (np.int64(t), np.int64(t + 1))),
    "deep": (
        spaces.Dict(a=spaces.Tuple([Texts(), NUMBER])),
        lambda t: {"a": (np.asarray(t).view(Text), t)},
        lambda t: {"a": (np.array([t], np.int64), np.int64(t))},
    ),
}


class Clock:
    """Shows the time in a kind's form to an agent, in the protocol of a subclass."""

    def __init__(self, space, form):
        self.space, self.form = space, form

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.shown(self.form(0)), self.infos()

    def step(self, actions):
        self.t += 1
        flags = self.shown(False), self.shown(self.t == LENGTH)
        return self.shown(self.form(self.t)), self.shown(0.0), *flags, self.infos()

    def shown(self, value):
        return {0: value}

    def infos(self):
        return {0: {}}

    def close(self):
        pass


class Joint(Clock, gym.Env):
    def __init__(self, space, form):
        super().__init__(space, form)
        self.observation_space, self.action_space = spaces.Dict({0: space}), spaces.Dict({0: DISCRETE})


class InTuple(Clock, gym.Env):
    def __init__(self, space, form):
        super().__init__(space, form)
        self.observation_space, self.action_space = spaces.Tuple([space]), spaces.Tuple([DISCRETE])

    def shown(self, value):
        return (value,)

    def infos(self):
        return {}


class Single(Clock, gym.Env):
    def __init__(self, space, form):
        super().__init__(space, form)
        self.observation_space, self.action_space = space, DISCRETE

    def shown(self, value):
        return value

    def infos(self):
        return {}


def of_rllib(space, form):
    script = [Step([0], truncated=t == LENGTH) for t in range(LENGTH + 1)]
    return Scripted(script, space=space, action_space=DISCRETE, see=lambda agent, t: form(t))


class Parallel(Clock):
    possible_agents = agents = (0,)

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return DISCRETE


class InTurns(Parallel):
    """The parts of PettingZoo's AECEnv that are used."""

    agent_selection = 0

    def agent_iter(self):
        raise NotImplementedError

    def reset(self, *, seed=None, options=None):
        super().reset()
        self.agents = [0]

    def step(self, action):
        if action is None:
            self.agents = []
        else:
            super().step({0: action})

    def last(self):
        return self.form(self.t), 0.0, False, self.t == LENGTH, {}


def single(space, form):
    return SingleGymnasiumEnv(Single(space, form))


PROTOCOLS = [Joint, InTuple, single, of_rllib, Parallel, InTurns]


def recorded(protocol, space, form, **options):
    config = fastmarl.EnvRunnerConfig(env=lambda config: protocol(space, form), **options)
    runner = fastmarl.MultiAgentEnvRunner(config)
    try:
        (episode,) = runner.sample(num_episodes=1, random_actions=True)
        return episode.agent_episodes[0].get_observations()
    finally:
        runner.stop()


def leaves(value):
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in leaves(value[key])]
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_values_that_a_space_accepts_are_recorded_in_every_protocol(protocol, kind):
    space, form, numbers = KINDS[kind]
    assert all(space.contains(form(t)) for t in range(LENGTH + 1))
    expected = zip(*(leaves(numbers(t)) for t in range(LENGTH + 1)), strict=True)
    for got, column in zip(leaves(recorded(protocol, space, form)), expected, strict=True):
        assert got.dtype == np.stack(column).dtype
        np.testing.assert_array_equal(got, np.stack(column))
    report = check_env(lambda config: protocol(space, form), steps=20)
    assert report.ok and "dtype" not in [note.kind for note in report.notes], str(report)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["texts", "dict"])
def test_values_that_a_space_accepts_pass_through_worker_processes(kind):
    space, form, numbers = KINDS[kind]
    got = recorded(of_rllib, space, form, gym_env_vectorize_mode="async", num_env_workers=1)
    expected = zip(*(leaves(numbers(t)) for t in range(LENGTH + 1)), strict=True)
    for column, each in zip(leaves(got), expected, strict=True):
        np.testing.assert_array_equal(column, np.stack(each))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("kind", "value"),
    [("texts", np.arange(2).view(Text)), ("floats", 0.5), ("columns", [["a"], ["b"]]), ("dict", {"n": 0, "more": 1})],
)
def test_values_that_are_no_numbers_of_the_space_are_errors_in_every_protocol(protocol, kind, value):
    space = KINDS[kind][0]
    with pytest.raises(ObservationError, match="agent 0, env step 0"):
        recorded(protocol, space, lambda t: value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_spaces_with_the_contains_of_their_class_take_no_other_form(protocol):
    class Plain(spaces.MultiDiscrete):
        """A subclass without a rule of its own."""

    values = (Plain([9]), np.int64(0)), (spaces.Discrete(9), 1.0), (spaces.Dict(n=NUMBER), {"n": 1, "more": 2})
    for space, value in values[protocol is Joint :]:  # a Dict of a joint env converts all numbered texts
        with pytest.raises(ObservationError, match="agent 0, env step 0"):
            recorded(protocol, space, lambda t, value=value: value)


def test_the_check_reports_values_that_the_space_itself_refuses():
    report = check_env(lambda config: of_rllib(Texts(), lambda t: np.array([t])), steps=10)
    assert [each.kind for each in report.problems] == ["bounds"]
    open_space = Open(n=spaces.Box(0, 9, (1,), np.float32))
    open_space.contains = lambda x: False
    report = check_env(lambda config: of_rllib(open_space, lambda t: {"n": np.zeros(1, np.float32)}), steps=10)
    assert "according to its contains()" in str(report) and not report.ok


def test_a_policy_from_a_checkpoint_takes_the_forms_that_its_runner_took(tmp_path):
    space, form, _ = KINDS["deep"]
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=lambda config: of_rllib(space, form)))
    policies = fastmarl.Policy.from_runner(runner), fastmarl.Policy.from_checkpoint(runner.save_to_path(tmp_path))
    for policy in policies:
        assert policy.act(form(3)) == policy.act({"a": (np.array([3]), 3)})
        assert fastmarl.evaluate(policy, lambda config: of_rllib(space, form), episodes=2).num_episodes == 2
    with pytest.raises(ObservationError):
        policies[1].act({"a": (np.array([3, 4]), 3)})


# One rule for spaces that a module serves.

PAIRS = [
    (spaces.Box(0, 1, (2,)), spaces.Box(0, 9, (2,)), True),
    (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (2,), np.float64), True),
    (spaces.Box(0, 9, (2,), np.float32), spaces.Box(0, 9, (2,), np.uint8), True),
    (spaces.Box(0, 9, (2,), np.uint8), spaces.Box(0, 9, (2,), np.float32), False),
    (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)), False),
    (spaces.Discrete(5), spaces.Discrete(6), False),
    (spaces.MultiDiscrete([5]), spaces.MultiDiscrete([6]), False),
    (spaces.Dict(a=NUMBER), spaces.Dict(b=NUMBER), False),
]


@pytest.mark.parametrize(("made_for", "observed", "fits"), PAIRS, ids=str)
def test_modules_serve_the_same_spaces_at_mapping_and_after_make_env(made_for, observed, fits):
    pairs = (made_for, DISCRETE), (observed, DISCRETE)
    assert serves(*pairs, bounds=True) == fits

    def env(config):
        mine = observed if config.get("other") else made_for
        return of_rllib(mine, lambda t: mine.sample())

    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env))
    runner.sample(num_timesteps=2)
    runner.config.env_config["other"] = True
    runner.make_env()
    if fits:
        assert runner.sample(num_timesteps=2)
    else:
        with pytest.raises(ConfigError, match=r"spaces for which the modules were built: .* for agent 0, got"):
            runner.sample(num_timesteps=2)


def test_bounds_of_actions_matter_if_actions_are_scaled_to_them():
    near, far, ints = (spaces.Box(-1, high, (2,), dtype) for high, dtype in ((1, "f4"), (2, "f4"), (1, "i4")))
    for bounds in (False, True):
        assert serves((NUMBER, near), (NUMBER, far), bounds=bounds) == (not bounds)
        assert serves((NUMBER, near), (NUMBER, near), bounds=bounds)
        assert not serves((NUMBER, near), (NUMBER, ints), bounds=bounds)


def test_adapters_leave_such_spaces_as_they_are():
    for protocol in (InTuple, single, of_rllib, Parallel, InTurns):
        space = Texts()
        assert as_multi_agent_env(protocol(space, lambda t: t)).get_observation_space(0) is space
