"""Compiled environments behind Gymnasium's face: each env is one that was stepped alone."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from fastmarl.envs.cart_pole import CartPole
from fastmarl.envs.lbforaging import LevelBasedForaging
from fastmarl.envs.simple_spread import SimpleSpread
from fastmarl.interop.gymnasium import AgentVectorEnv

N_ENVS = 5
ENVS = {
    "cart pole": (CartPole, {}),
    "simple_spread": (SimpleSpread, {"max_cycles": 7}),
    "foraging": (LevelBasedForaging, {"field_size": (5, 5), "players": 3, "max_num_food": 1, "max_episode_steps": 12}),
}


class Alone:
    """One env, reset and stepped by hand."""

    def __init__(self, kind, options):
        self.env = kind(1, **options)
        self.group = next(iter(self.env.groups))

    def reset(self, seed):
        out = self.env.new_arrays()
        self.env.reset(np.zeros(1, np.int64), out, seeds=[seed])
        return out.groups[self.group].obs[0].copy()

    def step(self, actions):
        """Returns observations, rewards, and whether the episode was terminated and truncated."""
        out = self.env.new_arrays()
        self.env.step({self.group: actions[None]}, out)
        group = out.groups[self.group]
        flags = [bool((own[0] | of_env[0]).all()) for own, of_env in
                 ((group.terminated, out.terminated), (group.truncated, out.truncated))]  # fmt: skip
        return group.obs[0].copy(), group.rewards[0].copy(), *flags


def spying(kind, options, taken):
    """A function that makes a batch whose resets write their seeds to `taken`."""

    def make(config):
        env = kind(config.num_envs, **options)
        plain = env.reset

        def reset(env_indices, out, *, seeds=None):
            taken.update(zip(env_indices.tolist(), seeds, strict=True))
            plain(env_indices, out, seeds=seeds)

        env.reset = reset
        return env

    return make


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("kind", ENVS)
def test_each_env_of_a_batch_is_one_alone(kind, mode, rng):
    make, options = ENVS[kind]
    seeds, n_ended = {}, 0
    envs = AgentVectorEnv(spying(make, options, seeds), N_ENVS, autoreset_mode=mode)
    alone = [Alone(make, options) for _ in range(N_ENVS)]
    n = len(envs.agents)
    observations, infos = envs.reset(seed=3)
    assert seeds == {env_index: 3 + env_index for env_index in range(N_ENVS)} and infos["active"].all()
    assert np.array_equal(observations, np.concatenate([env.reset(seeds[e]) for e, env in enumerate(alone)]))
    is_over = [False] * N_ENVS
    for _ in range(120):
        actions = rng.integers(envs.single_action_space.n, size=envs.num_envs)
        observations, rewards, terminations, truncations, infos = envs.step(actions)
        for e, env in enumerate(alone):
            rows = slice(e * n, e * n + n)
            if is_over[e]:
                wanted, is_over[e] = (env.reset(seeds[e]), np.zeros(n), False, False), False
            else:
                wanted = env.step(actions[rows])
                is_over[e] = any(wanted[2:])
            n_ended += is_over[e]
            if is_over[e] and mode is AutoresetMode.SAME_STEP:
                assert np.array_equal(np.stack(infos["final_obs"][rows]), wanted[0])
                wanted, is_over[e] = (env.reset(seeds[e]), *wanted[1:]), False
            assert np.array_equal(observations[rows], wanted[0])
            assert np.array_equal(rewards[rows], wanted[1])
            assert (terminations[rows] == wanted[2]).all() and (truncations[rows] == wanted[3]).all()
            assert (infos["active"][rows] == (not is_over[e])).all()
    assert n_ended > 5
    envs.close()
