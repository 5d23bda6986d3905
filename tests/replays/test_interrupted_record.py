"""Records of actions can be replayed, whatever has ended a call of `sample()`, and wherever; and the next call returns
the episodes that their envs had ended by then."""

import gymnasium as gym
import numpy as np
import pytest
from support.interrupts import Interruption, in_own_thread, interrupt_lines, lines_of

import fastmarl
from fastmarl.replays import Recording

N_LINES = 3
LENGTH = 4
JOINS = {"a": 0, "b": 0, "late": 2}
SPACE = gym.spaces.Box(-1e9, 1e9, (2,), np.float32)
END_OF_STEP = ("store/lanes.py", "episodes/log.py", "runner/rollout.py", "arrays/group.py", "arrays/scatter.py")


class Clock(fastmarl.MultiAgentEnv):
    """Observations are (env step, seed of the reset)."""

    def __init__(self, config=None):
        self.possible_agents = list(JOINS)
        self.observation_spaces = dict.fromkeys(JOINS, SPACE)
        self.action_spaces = dict.fromkeys(JOINS, gym.spaces.Discrete(3))

    def reset(self, *, seed=None, options=None):
        self.seed, self.t = seed, 0
        return self.observe(), {}

    def step(self, actions):
        self.t += 1
        rewards = {agent: float(action) for agent, action in actions.items()}
        return self.observe(), rewards, {"__all__": self.t >= LENGTH}, {"__all__": False}, {}

    def observe(self):
        return {agent: np.array([self.t, self.seed % 1000], np.float32) for agent, at in JOINS.items() if at <= self.t}


def make_runner(folder, **options):
    options = {"model_config": {"fcnet_hiddens": [4]}, "num_envs_per_env_runner": 2, "seed": 1, **options}
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{"env": Clock, **options}, record_actions=folder))


def check_replays(folder, env):
    """Returns how many whole episodes there are."""
    recording = Recording(folder)
    for episode in (each for each in recording if each.length):
        fastmarl.replay(folder, episode.number, env=env)
    return sum(episode.is_done for episode in recording)


def check_returned(chunks):
    """All that have ended are there, one env's after the other's."""
    ended = [chunk for chunk in chunks if chunk.is_done]
    assert len({chunk.id_ for chunk in ended}) == len(ended)
    return len(ended)


KINDS = {
    "dicts": {"env": Clock},
    "in turn": {"env": Clock, "worker_num_splits": 2},
    "batch": {"env": "fastmarl.simple_spread", "env_config": {"max_cycles": LENGTH}},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@in_own_thread
def test_after_an_interrupt_a_record_can_be_replayed(kind, tmp_path, rng):
    options = KINDS[kind]

    def try_line(interruption: Interruption) -> None:
        folder = tmp_path / str(interruption.line).replace("/", "-")
        runner = make_runner(folder, **options)
        chunks = runner.sample(num_timesteps=5)
        chunks += interruption.run(lambda: runner.sample(num_timesteps=5)) or []
        chunks += runner.sample(num_timesteps=5)
        runner.stop()
        assert check_replays(folder, options["env"]) == check_returned(chunks)

    runner = make_runner(tmp_path / "whole", **options)
    runner.sample(num_timesteps=5)
    lines = lines_of(lambda: runner.sample(num_timesteps=5))
    runner.stop()
    closing = [line for line in lines if line.file.endswith(END_OF_STEP)]
    others = [line for line in lines if line not in closing]
    for part in (closing, others):
        # What is allocated depends on what earlier runners have left.
        interrupt_lines(try_line, part, rng, n_lines=N_LINES, may_miss=True)


def once(condition):
    """A function that raises ValueError the first time that the condition holds."""
    state = {"left": 1}

    def fail(*args, **kwargs):
        if state["left"] and condition(*args, **kwargs):
            state["left"] = 0
            raise ValueError("its own error")
        return "default_policy"

    return fail


ERRORS = {
    "last step": {"callbacks_on_episode_step": once(lambda episode, **_: episode.env_t == LENGTH)},
    "some step": {"callbacks_on_episode_step": once(lambda episode, **_: episode.env_t == 2)},
    "end": {"callbacks_on_episode_end": once(lambda **_: True)},
    "start": {"callbacks_on_episode_start": once(lambda env_index, **_: env_index == 1)},
    "mapping": {"policy_mapping_fn": once(lambda agent_id, episode: agent_id == "late")},
    "mapping at the reset": {"policy_mapping_fn": once(lambda agent_id, episode: agent_id == "b")},
}


@pytest.mark.parametrize("where", ERRORS)
def test_after_an_error_a_record_can_be_replayed(where, tmp_path):
    runner = make_runner(tmp_path, policies={"default_policy": None}, **ERRORS[where])
    with pytest.raises(ValueError, match="its own error"):
        runner.sample(num_timesteps=15)
    chunks = runner.sample(num_timesteps=15)
    runner.stop()
    assert check_replays(tmp_path, Clock) == check_returned(chunks) > 0
