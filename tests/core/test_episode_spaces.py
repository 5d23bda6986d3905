"""An episode's spaces are its own: noted when its agents joined, whatever becomes of the env."""

import pickle
import queue
import threading

import gymnasium as gym
import numpy as np
import pytest
from support.trouble import Trouble

import fastmarl
from fastmarl.core.store import agent_spaces
from fastmarl.errors import EnvCheckError

NAMES = {"policies": ["p"], "policy_mapping_fn": lambda agent, episode: "p"}


class OpenWorld(Trouble):
    """New ids in every episode of 5 steps; each agent has a space of its own, which only the env knows."""

    def __init__(self, config):
        super().__init__(config)
        self.possible_agents, self.closed = [], False
        self.observation_space, self.action_space = self._space("any"), gym.spaces.Discrete(3)
        self.observation_spaces = self.action_spaces = None

    def reset(self, **kwargs):
        self.names = [f"{self.config.vector_index}/{self.n_resets}/{i}" for i in range(2)]
        return super().reset(**kwargs)

    def step(self, actions):
        obs, _, *rest = super().step(actions)
        return obs, dict.fromkeys(self.names, 1.0), *rest

    def get_observation_space(self, agent_id):
        assert not self.closed, "asked when it was closed"
        return self._space(agent_id)

    def get_action_space(self, agent_id):
        return self.action_space

    def close(self):
        self.closed = True

    def _space(self, agent_id):
        return gym.spaces.Box(-1000, 1000 + sum(map(ord, agent_id)), (3,), np.float32)

    def _obs(self):
        return {name: np.full(3, self.t, np.float32) for name in self.names}


def make_runner(mode, env=OpenWorld, **options):
    config = fastmarl.EnvRunnerConfig(
        env=env,
        env_config={"length": 5, **options.pop("env_config", {})},
        num_envs_per_env_runner=3,
        gym_env_vectorize_mode=mode,
        model_config={"fcnet_hiddens": [4]},
        seed=0,
        **({"num_env_workers": 2, "env_worker_start_method": "fork"} if mode == "async" else {}),
        **NAMES,
        **options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def spaces_of(chunks):
    return [(part.agent_id, part.observation_space) for chunk in chunks for part in chunk.agent_episodes.values()]


def wanted(names):
    return [(name, gym.spaces.Box(-1000, 1000 + sum(map(ord, name)), (3,), np.float32)) for name, _ in names]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("pickled", [False, True])
def test_episodes_are_read_after_the_envs_are_closed(mode, pickled):
    runner = make_runner(mode)
    chunks = [chunk for _ in range(3) for chunk in runner.sample(num_timesteps=33)]
    runner.stop()
    if pickled:
        chunks = pickle.loads(pickle.dumps(chunks))
    found = spaces_of(chunks)
    assert len({name for name, _ in found}) > 30
    assert found == wanted(found)


@pytest.mark.slow
def test_a_thread_may_read_while_the_runner_samples():
    runner, errors, returned = make_runner("async"), [], queue.SimpleQueue()

    def learn():
        for _ in range(20):
            found = spaces_of(returned.get())
            errors.extend([] if found == wanted(found) else [found])

    learner = threading.Thread(target=learn)
    learner.start()
    for _ in range(20):
        returned.put(runner.sample(num_timesteps=60))
    learner.join()
    runner.stop()
    assert not errors


def test_an_open_world_s_spaces_are_forgotten_with_its_agents(monkeypatch):
    monkeypatch.setattr(agent_spaces, "MOST_AGENTS", 8)
    runner = make_runner("sync")
    chunks = []
    for _ in range(30):
        chunks += runner.sample(num_timesteps=30)  # 12 agents of each env
        assert max(map(len, runner._sampling.rollout.table.spaces)) <= 8 + 4
    runner.stop()
    found = spaces_of(chunks)
    assert len({name for name, _ in found}) > 300
    assert found == wanted(found)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_remade_env_must_have_the_same_spaces(mode, tmp_path):
    class Changing(Trouble):
        def __init__(self, config):
            super().__init__(config)
            if (tmp_path / "1-7").exists():
                self.action_spaces = dict.fromkeys(self.possible_agents, gym.spaces.Discrete(2))

    options = {"restart_failed_sub_environments": True, "max_restarts": 1}
    runner = make_runner(mode, Changing, env_config={"trouble": {(1, 7): "raise"}, "once": str(tmp_path)}, **options)
    with pytest.raises(EnvCheckError, match=r"env 1 was recreated with different .*spaces"):
        runner.sample(num_timesteps=60)
    runner.stop()
