"""The bundled CartPole against RLlib's MultiAgentCartPole, step by step."""

import numpy as np
import pytest
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from support.exhaustive import further
from support.twins import Twins

from fastmarl.envs.cart_pole import CartPole


@pytest.mark.parametrize(("num_envs", "num_agents"), [(1, 1), (2, 3), *further([(4, 3), (2, 8)])])
def test_cart_pole_is_rllibs(num_envs, num_agents):
    """To float32 rounding, over short random episodes, long balanced ones, and those in which only some agents fall."""
    rng = np.random.default_rng(num_agents)

    def begin(e, original, seed):
        original.reset(seed=0)
        for i, env in enumerate(original.envs):
            env.unwrapped.state = batch.poles[e, i].copy()
        return {i: batch.poles[e, i].astype(np.float32) for i in range(num_agents)}

    def act(e, agent, obs):
        """Every other agent balances its pole."""
        x, speed, angle, turn = obs
        wise = 0.05 * x + 0.1 * speed + angle + 0.3 * turn > 0
        return int(wise) if (e + agent) % 2 == 0 else int(rng.integers(2))

    batch = CartPole(num_envs, num_agents)
    originals = [MultiAgentCartPole({"num_agents": num_agents}) for _ in range(num_envs)]
    assert batch.possible_agents == originals[0].possible_agents
    for agent in batch.possible_agents:
        assert batch.observation_spaces[agent] == originals[0].observation_spaces[agent]
        assert batch.action_spaces[agent] == originals[0].action_spaces[agent]
    twins = Twins(batch, originals, begin, seed=11, rtol=1e-6)
    twins.play(1600, act)
    assert twins.episodes >= 3 * num_envs
    assert twins.agent_ends == num_agents * twins.episodes + sum(num_agents - len(who) for who in twins.acting)
