"""Returns and inputs of the example epymarl.py, against plain loops over episodes."""

import argparse

import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.cli.runs import example

EPYMARL = example("epymarl")
OPTIONS = {
    "env": "fastmarl.lbforaging",
    "env_config": {"field_size": (5, 5), "players": 3, "max_num_food": 1, "max_episode_steps": 12},
    **{
        "num_envs": 4,
        "num_env_workers": None,
        "device": "cpu",
        "seed": 0,
        "policies": [],
        "module": [],
        "fragment": 20,
        "n_steps": 5,
    },
    **{"hiddens": [8, 8], "lr": 1e-3, "gamma": 0.9, "entropy": 0.0, "fragment": 20, "n_steps": 5},
    **{
        "normalize_rewards": False,
        "gru": False,
        "max_steps": None,
        "respawn": False,
        "late_rewards": "error",
        "reward_scale": 1.0,
    },
}


def made(critic, **options):
    args = argparse.Namespace(**{**OPTIONS, **options}, critic=critic)
    runner = fastmarl.MultiAgentEnvRunner(EPYMARL.make_config(args))
    return runner, EPYMARL.Learner(runner, args, 1), args


def inputs_in(chunk, critic):
    """Return what the critic sees at each step of a chunk: agent -> [n + 1, k]."""
    obs = {agent: part.get_observations() for agent, part in chunk.agent_episodes.items()}
    if critic == "own":
        return obs
    joint = np.concatenate([obs[agent][:, :-3] for agent in range(3)], 1)
    return {agent: np.concatenate([joint, obs[agent][:, -3:]], 1) for agent in range(3)}


def team_rewards(chunk):
    return sum(np.array(part.get_rewards()) for part in chunk.agent_episodes.values())


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("critic", ["own", "central"])
def test_targets_and_advantages_equal_plain_loops(critic, normalize):
    runner, learner, args = made(critic, normalize_rewards=normalize)
    earlier = runner.sample()
    learner.learn(earlier)  # the target differs from the critic from now on
    episodes = runner.sample()
    of_run = np.concatenate([team_rewards(chunk) for chunk in earlier + episodes])
    mean, std = (of_run.mean(), of_run.std()) if normalize else (0.0, 1.0)
    assert len({len(chunk) for chunk in episodes}) > 1
    assert {chunk.is_terminated for chunk in episodes} == {True, False}
    rows, of_critic = learner.rows_of(episodes)
    inputs = of_critic["obs"]
    names = "obs", "actions", "action_logp", "value_targets", "advantages"
    got = torch.cat([rows[name].reshape(len(inputs), -1) for name in names], 1)
    want = []
    for chunk in episodes:
        seen, n = inputs_in(chunk, critic), len(chunk)
        rewards = (team_rewards(chunk) - mean) / std
        for agent, part in chunk.agent_episodes.items():
            given = torch.from_numpy(seen[agent])
            with torch.no_grad():
                later = learner.target(given)[:, 0].numpy()
                now = learner.critic(given[:-1])[:, 0].numpy()
            for t in range(n):
                end = min(t + args.n_steps, n)
                target = sum(args.gamma ** (k - t) * rewards[k] for k in range(t, end))
                if end < n or not chunk.is_terminated:
                    target += args.gamma ** (end - t) * later[end]
                logp = part.get_extra_model_outputs("action_logp")[t]
                row = [*part.get_observations()[t], part.get_actions()[t], logp, target, target - now[t]]
                want.append(row)
    assert len(want) == 3 * args.num_envs * args.fragment
    np.testing.assert_allclose(in_order(got.numpy()), in_order(np.array(want, np.float32)), rtol=2e-5, atol=1e-5)


def in_order(rows):
    """Sort rows by all columns, rounded."""
    return rows[np.lexsort(rows.round(4).T[::-1])]


@pytest.mark.parametrize("critic", ["own", "central"])
def test_the_target_follows_the_critic(critic):
    runner, learner, _ = made(critic)
    before, critic = flat(learner.target), flat(learner.critic)
    assert torch.equal(before, critic)
    learner.learn(runner.sample())
    expected = before + 0.01 * (flat(learner.critic) - before)
    assert not torch.equal(flat(learner.critic), critic)
    torch.testing.assert_close(flat(learner.target), expected)


def flat(critic):
    return torch.cat([each.detach().reshape(-1) for each in critic.parameters()])
