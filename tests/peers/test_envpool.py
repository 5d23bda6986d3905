"""EnvPool's batches: Gymnasium vector envs that reset in the step after an episode's end."""

import envpool
import numpy as np
from support.sampled import Sampled

from fastmarl.core.envs.gymnasium_vector import VectorGymnasiumEnv

NUM_ENVS = 6


def cart_poles(num_envs):
    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, seed=1)


def test_episodes_match_a_replay():
    """A second batch with the same seed, given the recorded actions, says the same."""
    sampled = Sampled(lambda config: cart_poles(config.num_envs), NUM_ENVS, calls=[1, 2, 70, 60])
    assert isinstance(sampled.adapter, VectorGymnasiumEnv)
    records = [[episode.agent_episodes[0] for episode in of_env if len(episode)] for of_env in sampled.by_env]
    batch, t_E = cart_poles(NUM_ENVS), np.zeros(NUM_ENVS, int)
    observations, _ = batch.reset()
    begins, n_ended = np.zeros(NUM_ENVS, bool), 0
    for _ in range(sampled.steps):
        acting, actions = np.flatnonzero(~begins), np.zeros(NUM_ENVS, int)
        for e in acting:
            np.testing.assert_array_equal(records[e][0].get_observations(t_E[e]), observations[e])
            actions[e] = records[e][0].get_actions(t_E[e])
        observations, rewards, terminated, truncated, _ = batch.step(actions)
        for e in acting:
            assert records[e][0].get_rewards(t_E[e]) == rewards[e]
            t_E[e] += 1
            begins[e] = terminated[e] or truncated[e]
            if begins[e]:
                record, t_E[e], n_ended = records[e].pop(0), 0, n_ended + 1
                np.testing.assert_array_equal(record.get_observations(-1), observations[e])
                assert len(record.get_actions()) == len(record) and record.is_done
                assert (record.is_terminated, record.is_truncated) == (terminated[e], truncated[e])
        begins[np.setdiff1d(np.arange(NUM_ENVS), acting)] = False
    assert n_ended > NUM_ENVS
