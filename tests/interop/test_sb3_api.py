"""Stable-Baselines3 on our vector environment."""

import gymnasium as gym
import numpy as np
import pytest
from support.ledgered.worlds import WORLDS

import fastmarl
from fastmarl.core.spaces.masks import choices_of
from fastmarl.errors import ConfigError

pytestmark = pytest.mark.needs("stable_baselines3")


@pytest.fixture
def face():
    from fastmarl.interop.sb3 import AgentVecEnv

    made = []

    def make(*args, **options):
        made.append(AgentVecEnv(*args, **options))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


@pytest.mark.slow
def test_ppo_learns_and_counts_returns(face):
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecMonitor

    envs = VecMonitor(face("fastmarl.simple_spread", 8))
    model = PPO("MlpPolicy", envs, n_steps=50, batch_size=400, seed=1, device="cpu").learn(2400)
    assert model.num_timesteps == 2400 and len(model.ep_info_buffer) == 96
    assert {info["l"] for info in model.ep_info_buffer} == {25}
    assert -60 < np.mean([info["r"] for info in model.ep_info_buffer]) < -15  # of one agent; a team's is -79


@pytest.mark.slow
@pytest.mark.needs("sb3_contrib")
@pytest.mark.parametrize("world", ["masks in observations", "masks in infos", "masks of several choices"])
def test_maskable_ppo_takes_legal_actions_alone(face, world):
    from sb3_contrib import MaskablePPO

    envs = face(WORLDS[world], 2)
    MaskablePPO("MlpPolicy", envs, n_steps=32, batch_size=64, seed=1, device="cpu").learn(128)
    for env in envs._rows.envs:
        for before, entry in zip(env.ledger, env.ledger[1:], strict=False):
            for agent, action in entry.actions.items():
                sizes = choices_of(envs.action_space)
                parts = np.split(np.array(before.masks[agent]), np.cumsum(sizes)[:-1])
                assert all(part[choice] for part, choice in zip(parts, np.ravel(action), strict=True))


def test_continuous_actions_have_no_masks(face):
    assert not face(WORLDS["continuous actions"], 1).has_attr("action_masks")


def test_methods_and_attributes_are_those_of_the_rows_envs(face):
    envs = face(WORLDS["all agents act"], 2)
    envs.reset()
    inner = envs._rows.envs
    assert envs.get_attr("t") == [0] * 4 and envs.get_attr("ledger", [2, 0]) == [inner[1].ledger, inner[0].ledger]
    envs.set_attr("t", 5, indices=3)
    assert [env.t for env in inner] == [0, 5]
    states = envs.env_method("state", indices=[0, 3])
    assert all(np.array_equal(state, env.state()) for state, env in zip(states, inner, strict=True))
    assert envs.env_is_wrapped(gym.Wrapper) == [False] * 4
    assert (envs.agents, envs.env_index.tolist()) == (["a", "b"], [0, 0, 1, 1])


@pytest.mark.slow
def test_methods_and_attributes_of_envs_in_worker_processes(face):
    envs = face(WORLDS["all agents act"], 2, num_env_workers=1)
    envs.reset()
    envs.set_attr("t", 5, indices=3)
    assert envs.get_attr("t") == [0, 0, 5, 5] and envs.get_attr("render_mode") == [None] * 4
    first, second = envs.env_method("state", indices=[0, 3])
    assert first.shape == second.shape == (4,) and (first != second).any()


def test_seeds_are_for_the_next_reset_and_options_refused(face):
    def make(config):
        env = WORLDS["all agents act"](config)
        env.seeds, plain = [], env.reset
        env.reset = lambda *, seed=None, options=None: env.seeds.append(seed) or plain()
        return env

    envs = face(make, 2)
    assert envs.seed(4) == [4, 4, 5, 5]
    envs.reset()
    envs.reset()
    assert [env.seeds for env in envs._rows.envs] == [[4, None], [5, None]]
    first, second = envs.seed(), envs.seed()
    assert None not in first and first != second
    envs.set_options({"map": 1})
    with pytest.raises(ConfigError, match="pass them in env_config"):
        envs.reset()


class Reusing(fastmarl.MultiAgentEnv):
    """Its infos are one dict, which it changes in place."""

    possible_agents = ("a",)
    observation_space, action_space = gym.spaces.Box(-9, 9, (1,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, config):
        self.info, self.at = {}, np.zeros(1)

    def reset(self, *, seed=None, options=None):
        self.info.clear()
        self.info.update(active="no", begun=True)
        self.t = 0
        return {"a": np.zeros(1, np.float32)}, {"a": self.info}

    def step(self, actions):
        self.t += 1
        self.at[:] = self.t
        self.info.update(at=self.at)
        return (
            {"a": np.zeros(1, np.float32)},
            {"a": 1.0},
            {"__all__": self.t == 3},
            {"__all__": False},
            {"a": self.info},
        )


def test_infos_stay_as_they_were(face):
    envs = face(Reusing, 1)
    envs.reset()
    assert envs.reset_infos == [{"active": True, "begun": True}]
    infos = [envs.step(np.zeros(1, int))[3][0] for _ in range(3)]
    assert [info["at"].item() for info in infos] == [1, 2, 3] and "terminal_observation" in infos[2]
    assert [info["active"] for info in infos] == [True] * 3


@pytest.mark.needs("mpe2")
def test_attributes_are_set_in_the_layer_that_has_them(face):
    envs = face("mpe2.simple_spread_v3", 1)
    envs.set_attr("local_ratio", 0.9)
    assert envs._rows.envs[0].unwrapped.local_ratio == 0.9 and envs.get_attr("local_ratio") == [0.9] * 3
    limited = face(WORLDS["all agents act"], 1, max_steps=3)
    limited.reset()
    assert limited.env_method("legal", "a") == [limited._rows.envs[0].unwrapped.legal("a")] * 2
