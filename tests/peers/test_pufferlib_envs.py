"""PufferLib's own compiled envs, sampled: `make test-peers` builds them and runs this."""

import numpy as np
import pytest
from pufferlib.ocean.environment import env_creator
from support.puffer_rows import check_replay
from support.sampled import Sampled

from fastmarl.core.envs.pufferlib import PufferLibEnv

NUM_ENVS = 6


def noting_seeds(env):
    """The env; `seeds` gets what it is reset with."""
    reset, env.seeds = env.reset, []

    def noted(seed=None):
        env.seeds.append(seed)
        return reset(seed)

    env.reset = noted
    return env


@pytest.mark.parametrize(
    ("name", "options", "ends"),
    [
        ("squared", {"size": 5}, True),
        ("breakout", {}, False),  # its episodes are long
        ("cartpole", {}, True),
        ("rware", {"num_agents": 3}, False),  # reports no ends; neither does snake
        ("snake", {"num_snakes": 5, "width": 30, "height": 30, "num_food": 20}, False),
    ],
)
def test_episodes_match_a_replay(name, options, ends):
    """A second batch with the same seed, given the recorded actions, says the same."""
    made = []

    def make(config):
        made.append(noting_seeds(env_creator(f"puffer_{name}")(num_envs=config.num_envs, **options)))
        return PufferLibEnv(made[0], config.num_envs)

    sampled = Sampled(make, NUM_ENVS, calls=[1, 2, 17, 60])
    again = env_creator(f"puffer_{name}")(num_envs=NUM_ENVS, **options)
    assert (check_replay(sampled, again, made[0].seeds[0]) > NUM_ENVS) == ends
    again.close()


def test_rows_that_end_one_by_one_are_envs_of_their_own():
    def make(config):
        return PufferLibEnv(env_creator("puffer_squared")(num_envs=config.num_envs, size=3))

    sampled = Sampled(make, 8, calls=[40])
    episodes = [episode for of_env in sampled.by_env for episode in of_env]
    assert all(list(episode.agent_episodes) == [0] for episode in episodes) and len(episodes) > 40


def test_the_last_observation_of_connect4_is_the_true_one():
    sampled = Sampled("pufferlib.connect4", NUM_ENVS, calls=[5, 70])
    n_ended = 0
    for episodes in sampled.by_env:
        for episode in episodes:
            for part in episode.agent_episodes.values():
                observed = part.get_observations()
                n_ended += part.is_done
                assert np.abs(observed[0]).sum() == 0, "an empty board"
                pieces = np.abs(observed).astype(bool).sum(1)
                assert (np.diff(pieces) >= 0).all() and (not part.is_done or len(part) >= 3)
    assert n_ended > NUM_ENVS
