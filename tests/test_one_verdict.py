"""check_env() and the runner have one verdict: what one refuses, the other names."""

import gymnasium as gym
import numpy as np
import pytest

import fastmarl
from fastmarl.errors import FastmarlError
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
