"""Batches whose integers have another dtype than the space, or the module: converted where that can hold them, an error
elsewhere; they never wrap."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from support.scripted import Says

import fastmarl
from fastmarl.connectors import EnvToModuleConnector
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.errors import ConnectorError, ModuleOutputError, ObservationError

N, SEVENS = 3, np.full(2, 7)
WIDE, NARROW = gym.spaces.Box(-999, 999, (2,), np.int64), gym.spaces.Box(-128, 127, (2,), np.int8)
ACTIONS, BYTES = gym.spaces.MultiDiscrete([999, 999]), gym.spaces.MultiDiscrete([255, 255], np.uint8)


class Ints(ArrayEnv):
    """Agents observe the env step; or `bad` at (env, env step, agent), in episodes of four steps."""

    def __init__(self, num_envs, bad=0, at=(1, 2, 1), action_space=ACTIONS):
        super().__init__(num_envs, {"all": ["a", "b"]}, {"all": WIDE}, {"all": action_space})
        self.t, self.bad, self.at, self.acted = np.zeros(num_envs, np.int64), bad, at, []

    def reset(self, env_indices, out, *, seeds=None):
        self.t[env_indices] = 0
        self.observe(out)

    def step(self, actions, out):
        self.acted.append(actions["all"].copy())
        self.t += 1
        self.observe(out)
        out.terminated[:] = self.t == 4

    def observe(self, out):
        obs = out.groups["all"].obs
        obs[...] = self.t[:, None, None]
        env, env_t, agent = self.at
        if self.bad and self.t[env] == env_t:
            obs[env, agent, 1] = self.bad


def make_runner(make, module, **options):
    config = fastmarl.EnvRunnerConfig(env=make, num_envs_per_env_runner=N, policies={"p": module}, seed=0, **options)
    return fastmarl.MultiAgentEnvRunner(config)


@pytest.mark.parametrize("env_t", [0, 2, 4])
@pytest.mark.parametrize("bad", [128, 300, -129])
def test_observations_that_the_module_can_not_hold(bad, env_t):
    runner = make_runner(
        lambda config: Ints(config.num_envs, bad, (1, env_t, 1)), Says(NARROW, ACTIONS, actions=SEVENS)
    )
    with pytest.raises(ObservationError, match=r"observation that int8, .* can hold, got int64 .* values") as error:
        runner.sample(num_timesteps=30)
    assert error.value.args[:3] == (1, "b", env_t)


@pytest.mark.parametrize("held", [127, -128])
def test_observations_that_it_can_hold(held):
    runner = make_runner(lambda config: Ints(config.num_envs, held), Says(NARROW, ACTIONS, actions=SEVENS))
    episode = runner.sample(num_timesteps=4 * N)[1]
    observations = episode.agent_episodes["b"].get_observations()
    assert observations.dtype == np.int8 and observations[:, 1].tolist() == [0, 1, held, 3, 4]


@pytest.mark.parametrize("action", [256, 300, -1])
def test_actions_that_the_env_can_not_hold(action):
    runner = make_runner(
        lambda config: Ints(config.num_envs, action_space=BYTES), Says(WIDE, ACTIONS, actions=np.full(2, action))
    )
    with pytest.raises(
        ModuleOutputError, match=f"'p': expected actions that uint8 can hold.*from {action} to {action}"
    ):
        runner.sample(num_timesteps=N)


def test_actions_that_it_can_hold():
    runner = make_runner(
        lambda config: Ints(config.num_envs, action_space=BYTES), Says(WIDE, ACTIONS, actions=np.full(2, 254))
    )
    runner.sample(num_timesteps=N)
    (acted,) = runner.env.envs[0].acted
    assert acted.dtype == np.uint8 and (acted == 254).all()


class Vector(VectorEnv):
    """Sends int64 observations for a space of bytes: the env step, or `bad` in env 2 at one step."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, config, bad, env_t):
        self.num_envs, self.bad = config.num_envs, (2 - config.vector_index, env_t, bad)
        self.single_observation_space = gym.spaces.Box(0, 255, (2,), np.uint8)
        self.single_action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observe(), {}

    def step(self, actions):
        self.t += 1
        over = np.full(self.num_envs, self.t == 4)
        return self.observe(), np.zeros(self.num_envs), over, over, {}

    def observe(self):
        obs = np.full((self.num_envs, 2), self.t)
        env, env_t, bad = self.bad
        if self.t == env_t:
            obs[env : env + 1, 0] = bad
        return obs


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("env_t", [0, 2, 4])
@pytest.mark.parametrize("bad", [256, -1, 255])
def test_observations_of_a_vector_env(bad, env_t, num_splits):
    runner = make_runner(lambda config: Vector(config, bad, env_t), None, worker_num_splits=num_splits)
    if bad == 255:
        episode = next(each for each in runner.sample(num_timesteps=4 * N) if each.get_observations(env_t)[0][0] == bad)
        assert episode.get_observations(env_t)[0].tolist() == [255, env_t]
        return
    with pytest.raises(ObservationError, match=f"expected uint8, got int64 .*(from|to) {bad}") as error:
        runner.sample(num_timesteps=30)
    assert error.value.args[:3] == (2, 0, env_t)


class Narrowed(EnvToModuleConnector):
    """Promises int8, and makes 100 times the observation."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return NARROW

    def __call__(self, obs, rows):
        return 100 * obs


def test_observations_of_a_connector_that_do_not_fit_are_errors():
    runner = make_runner(
        lambda config: Ints(config.num_envs), Says(NARROW, ACTIONS, actions=SEVENS), env_to_module_connector=Narrowed()
    )
    with pytest.raises(ConnectorError, match=r"dtype int8, .* got int64 of shape \(6, 2\) with values from 200 to 200"):
        runner.sample(num_timesteps=30)
