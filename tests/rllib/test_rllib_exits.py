"""sys.exit() in user code silently ends RLlib's program; here it is an error, or the env is created again."""

import sys

import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv

import fastmarl.rllib
from fastmarl.errors import UserExitError
from fastmarl.testing import CountingEnv

pytestmark = pytest.mark.filterwarnings("ignore:.*Overriding environment")


class Quitter(CountingEnv, MultiAgentEnv):
    exits = 0

    def __init__(self, config):
        super().__init__(episode_length=5)
        self.agents = self.possible_agents
        self.where = config.get("where")

    def reset(self, *, seed=None, options=None):
        self.leave("reset")
        return super().reset(seed=seed, options=options)

    def step(self, actions):
        self.leave("step")
        return super().step(actions)

    def leave(self, where):
        if where == self.where and not Quitter.exits:
            Quitter.exits += 1
            sys.exit()


def make_runner(where, *, restart, **env_runners):
    Quitter.exits = 0
    config = PPOConfig().environment(Quitter, env_config={"where": where}, disable_env_checking=True)
    config.multi_agent(policies={"p"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "p")
    config.env_runners(num_envs_per_env_runner=2, **env_runners)
    config.fault_tolerance(restart_failed_sub_environments=restart)
    return fastmarl.rllib.MultiAgentEnvRunner(config=config)


@pytest.mark.parametrize("where", ["reset", "step"])
def test_it_is_an_error(where):
    runner = make_runner(where, restart=False)
    with pytest.raises((UserExitError, RuntimeError)) as raised:
        runner.sample(num_timesteps=8)
    errors = [raised.value, raised.value.__cause__]
    assert any(isinstance(error, UserExitError) for error in errors)
    runner.stop()


@pytest.mark.parametrize("where", ["reset", "step"])
def test_envs_are_remade_if_restarts_are_allowed(where):
    runner = make_runner(where, restart=True)
    assert sum(map(len, runner.sample(num_timesteps=8))) >= 8
    runner.stop()


@pytest.mark.parametrize("where", ["reset", "step"])
def test_also_in_rllibs_own_loop(where):
    runner = make_runner(where, restart=False, episodes_to_numpy=False)
    with pytest.raises(UserExitError, match=r"test_rllib_exits.py:\d+ \(leave\)"):
        runner.sample(num_timesteps=8)
    runner.stop()
    runner = make_runner(where, restart=True, episodes_to_numpy=False)
    assert sum(map(len, runner.sample(num_timesteps=8))) >= 8
    assert runner.is_accelerated is False and Quitter.exits == 1
    assert (where == "step") == ("num_env_step_failures" in runner.get_metrics())
    runner.stop()
