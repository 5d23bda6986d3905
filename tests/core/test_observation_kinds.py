"""Observations of every kind, from an env to the module and to the record."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.scripted import counting, scripted

import fastmarl

spaces = gym.spaces
TEXT = spaces.Dict({"t": spaces.Box(0, 99, (1,), np.float64), "said": spaces.Text(9)})


class Listener(torch.nn.Module):
    """Writes down its observations; counts its actions if it has memory."""

    def __init__(self, space, remembers=False):
        super().__init__()
        self.observation_space, self.action_space = space, spaces.Discrete(3)
        self.remembers = remembers
        self.heard = []

    def get_initial_state(self):
        return {"n": torch.zeros(1)} if self.remembers else {}

    def forward(self, batch):
        self.heard.append(batch["obs"])
        n = 2
        if not self.remembers:
            return {"actions": torch.ones(n, dtype=torch.int64)}
        return {"actions": torch.ones(n, 1, dtype=torch.int64), "state_out": {"n": batch["state_in"]["n"] + 1}}


def sampled(space, form, remembers=False, **options):
    """Return the listener to agents that see the time t as form(t), and the steps of one of them."""
    module = Listener(space, remembers)
    env = scripted(counting(2, 6), space=space, see=lambda agent, t: form(t))
    config = fastmarl.EnvRunnerConfig(env=env, policies={"p": module}, **options)
    (episode,) = fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=6)
    return module, episode.agent_episodes["agent_1"]


@pytest.mark.parametrize("remembers", [False, True], ids=["no memory", "memory"])
def test_texts_are_recorded_and_given_to_the_module(remembers):
    with pytest.warns(UserWarning, match=r"module 'p' have parts that are not arrays, at \[\['said'\]\]"):
        module, part = sampled(TEXT, lambda t: {"t": np.array([t], float), "said": f"at {t}"}, remembers)
    assert part.get_observations()["said"].tolist() == [f"at {t}" for t in range(7)]
    assert part.get_observations()["t"].tolist() == [[t] for t in range(7)]
    for t, heard in enumerate(module.heard):
        assert heard["said"].shape == heard["t"].shape[:-1] == ((2, 1) if remembers else (2,))
        assert heard["said"].ravel().tolist() == [f"at {t}"] * 2
        assert heard["t"].ravel().tolist() == [t] * 2
    if remembers:
        assert part.get_extra_model_outputs("state_in")["n"].tolist() == [[t] for t in range(6)]


@pytest.mark.parametrize("keep_float64", [False, True])
def test_float64_is_recorded_as_float32_unless_it_is_to_be_kept(keep_float64):
    space = spaces.Tuple([spaces.Box(0, 99, (3,), np.float64), spaces.Box(0, 255, (2,), np.uint8)])
    third = 1 / 3

    def form(t):
        return np.full(6, t + third)[::2], np.full(2, t, np.uint8)

    module, part = sampled(space, form, keep_float64=keep_float64)
    floats, ints = part.get_observations()
    assert (floats.dtype, ints.dtype) == (np.float64 if keep_float64 else np.float32, np.uint8)
    expected = np.repeat(np.arange(7)[:, None] + third, 3, 1)
    np.testing.assert_array_equal(floats, expected if keep_float64 else expected.astype(np.float32))
    assert module.heard[0][0].dtype == torch.float32


KINDS = {
    "scalar": (spaces.Box(-1, 99, (), np.float32), lambda t: np.array(t, np.float32)),
    "half": (spaces.Box(-1, 99, (2,), np.float16), lambda t: np.full(2, t, np.float16)),
    "2-d int64": (spaces.Box(-99, 99, (2, 3), np.int64), lambda t: np.full((2, 3), -t)),
    "3-d image": (spaces.Box(0, 255, (4, 5, 3), np.uint8), lambda t: np.full((4, 5, 3), t, np.uint8)),
    "bool": (spaces.Box(0, 1, (3,), np.bool_), lambda t: np.full(3, t % 2 == 1)),
    "discrete": (spaces.Discrete(9, start=-1), lambda t: t),
    "multi discrete": (spaces.MultiDiscrete([[9, 9], [8, 8]]), lambda t: np.full((2, 2), t)),
    "multi binary": (spaces.MultiBinary(4), lambda t: np.full(4, t % 2, np.int8)),
    "dict in tuple in dict": (
        spaces.Dict({"a": spaces.Tuple([spaces.Dict({"b": spaces.Discrete(9)}), spaces.Box(0, 9, (2,))])}),
        lambda t: {"a": ({"b": t}, np.full(2, t, np.float32))},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_space_is_recorded_in_its_own_dtype(kind):
    space, form = KINDS[kind]
    _, part = sampled(space, form)
    for t in range(7):
        expected, got = form(t), part.get_observations(t)
        assert space.contains(expected)
        if kind == "dict in tuple in dict":
            assert (got["a"][0]["b"], got["a"][0]["b"].dtype) == (t, np.int64)
            expected, got = expected["a"][1], got["a"][1]
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == np.asarray(expected).dtype
