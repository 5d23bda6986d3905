"""Spaces with parts that hold nothing, and with bounds so far apart that their distance is infinite."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.scripted import counting, scripted

import fastmarl
from fastmarl.distributions import get_action_dist_cls

spaces = gym.spaces
THREE = spaces.Box(-1, 1, (3,), np.float32)
FAR = spaces.Box(-1e308, 1e308, (3,), np.float64)
SEEN = {
    "dict": (spaces.Dict({"none": spaces.Dict({}), "some": THREE}), {"none": {}, "some": np.ones(3, np.float32)}),
    "tuple": (spaces.Tuple([spaces.Tuple([]), THREE]), ((), np.ones(3, np.float32))),
    "deep": (
        spaces.Dict({"a": spaces.Tuple([spaces.Dict({}), spaces.Dict({})]), "b": THREE}),
        {"a": ({}, {}), "b": np.ones(3, np.float32)},
    ),
    "far": (FAR, np.ones(3)),
}
CHOSEN = {
    "number": spaces.Discrete(3),
    "dict": spaces.Dict({"none": spaces.Dict({}), "some": spaces.Discrete(3)}),
    "tuple": spaces.Tuple([spaces.Dict({}), spaces.Discrete(3), spaces.Tuple([])]),
    "far": FAR,
    "far float32": spaces.Box(-3e38, 3e38, (2,), np.float32),
    "far in a dict": spaces.Dict({"far": FAR, "none": spaces.Tuple([])}),
}


def sampled(seen, chosen, mode, **options):
    space, value = SEEN[seen]
    env = scripted(counting(2, 5), space=space, action_space=CHOSEN[chosen], see=lambda agent, t: value)
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=env, policies={"p"}, seed=3, **options))
    episodes = runner.sample(num_timesteps=20, **mode)
    got = [action for actions in runner.env.envs[0].actions for action in actions.values()]
    assert all(CHOSEN[chosen].contains(action) for action in got)
    assert len(got) == 40
    return episodes, got


@pytest.mark.thinned(3)
@pytest.mark.parametrize("mode", [{}, {"explore": False}, {"random_actions": True}], ids=str)
@pytest.mark.parametrize("chosen", CHOSEN)
@pytest.mark.parametrize("seen", SEEN)
def test_they_are_sampled(seen, chosen, mode):
    episodes, _ = sampled(seen, chosen, mode)
    part = episodes[0].agent_episodes["agent_1"]
    assert str(part.get_observations(2)) == str(SEEN[seen][1]) or seen == "far"


@pytest.mark.parametrize("chosen", ["far", "far float32", "far in a dict"])
@pytest.mark.parametrize("normalize", [False, True])
def test_random_actions_reach_far(chosen, normalize):
    episodes, got = sampled("dict", chosen, {"random_actions": True}, normalize_actions=normalize)
    numbers = np.concatenate([action["far"] if isinstance(action, dict) else action for action in got])
    bound = 3e38 if chosen == "far float32" else 1e308
    assert numbers.min() < -0.5 * bound
    assert numbers.max() > 0.5 * bound
    logp = episodes[0].agent_episodes["agent_0"].get_extra_model_outputs("action_logp")
    assert np.isfinite(logp).all()
    if not normalize:
        n = 2 if chosen == "far float32" else 3
        np.testing.assert_allclose(logp, -n * (np.log(bound) + np.log(2)), rtol=1e-6)


@pytest.mark.parametrize("chosen", ["dict", "tuple"])
def test_parts_that_hold_nothing_have_log_probability_0(chosen):
    space = CHOSEN[chosen]
    kind = get_action_dist_cls(space)
    assert kind.required_input_dim(space) == 3
    logits = torch.arange(12.0).reshape(4, 3).sin()
    one, alone = kind.from_logits(logits), get_action_dist_cls(spaces.Discrete(3)).from_logits(logits)
    actions = torch.tensor([0, 2, 1, 1])
    recorded = {"some": actions} if chosen == "dict" else ((), actions)  # without the parts that hold nothing
    torch.testing.assert_close(one.logp(recorded), alone.logp(actions))
    torch.testing.assert_close(one.entropy(), alone.entropy())
    torch.testing.assert_close(one.kl(kind.from_logits(-logits)), alone.kl(type(alone).from_logits(-logits)))
    drawn, logp = kind.sample_and_logp(logits)
    torch.testing.assert_close(one.logp(drawn), logp)
    assert one.to_deterministic().sample().keys() == {"none", "some"} if chosen == "dict" else True
