"""Modules whose state is more than tensors, by torch's get_extra_state() and set_extra_state()."""

import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.errors import CheckpointError, ConfigError
from fastmarl.testing import CountingEnv


class Layer(torch.nn.Linear):
    """Has an extra state of any form."""

    extra = None

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        if isinstance(state, str) and state == "bad":
            raise ValueError("no such state")
        self.extra = state


class Net(torch.nn.Module):
    def __init__(self, extra=None):
        super().__init__()
        self.first, self.second = Layer(4, 3), torch.nn.Linear(3, 3)
        self.first.extra = extra

    def forward(self, batch):
        return {"action_dist_inputs": self.second(self.first(batch["obs"]))}


EXTRAS = [
    {"steps": 3, "names": ["a", "b"], "mean": torch.arange(3.0), "parts": ({"x": torch.tensor(2)}, None)},
    torch.arange(5),
    7,
    None,
    "",
    np.arange(3),
]


def same(one, other):
    if isinstance(one, dict):
        return type(other) is dict and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor | np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and bool((one == other).all())
    return one == other


def make_runner(extra):
    config = fastmarl.EnvRunnerConfig(env=lambda config: CountingEnv(2), policies={"p": Net(extra)}, seed=0)
    return fastmarl.MultiAgentEnvRunner(config)


def extra_of(runner):
    return runner.module["p"].module.first.extra


@pytest.mark.parametrize("extra", EXTRAS, ids=repr)
def test_it_goes_from_runner_to_runner(extra):
    source, target = make_runner(extra), make_runner({"other": 1})
    source.sample(num_timesteps=4)
    for state in (source.get_state(), {"rl_module": source.get_weights()}):
        target.set_state(state)
        assert same(extra_of(target), extra)
        assert extra is None or isinstance(extra, int | str) or extra_of(target) is not extra
        target.module["p"].module.first.extra = {"other": 2}
    target.set_weights(source.get_weights())
    assert same(extra_of(target), extra)
    assert target.sample(num_timesteps=4)


@pytest.mark.parametrize("extra", EXTRAS, ids=repr)
def test_it_goes_through_a_checkpoint(extra, tmp_path):
    source, target = make_runner(extra), make_runner(extra)
    source.save_to_path(tmp_path)
    target.restore_from_path(tmp_path)
    assert same(extra_of(target), extra)
    weights = source.get_weights()["p"]
    assert all(same(value, target.get_weights()["p"][name]) for name, value in weights.items())


def test_returned_extra_states_are_copied():
    extra = {"steps": [1]}
    runner = make_runner(extra)
    state = runner.get_state()
    extra["steps"].append(2)
    runner.set_state(state)
    assert extra_of(runner) == {"steps": [1]}
    extra_of(runner)["steps"].append(3)
    runner.set_state(state)
    assert extra_of(runner) == {"steps": [1]}


def test_a_bad_one_leaves_the_weights_as_they_were(tmp_path):
    source, target = make_runner("bad"), make_runner(5)
    with torch.no_grad():
        target.module["p"].module.second.weight.fill_(2)
    before = target.get_weights()["p"]
    with pytest.raises(ValueError, match="no such state"):
        target.set_weights(source.get_weights())
    source.save_to_path(tmp_path)
    with pytest.raises(CheckpointError, match="no such state"):
        target.restore_from_path(tmp_path)
    after = target.get_weights()["p"]
    assert all(same(value, after[name]) for name, value in before.items())
    with pytest.raises(ConfigError, match="_extra_state is missing"):
        target.set_weights({"p": {name: value for name, value in before.items() if "extra" not in name}})


def test_errors_name_the_place_of_values_a_checkpoint_cannot_hold(tmp_path):
    with pytest.raises(CheckpointError, match=r"\['first._extra_state'\] is a set, which cannot be saved"):
        make_runner({1, 2}).save_to_path(tmp_path)
