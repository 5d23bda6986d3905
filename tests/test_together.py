"""Features at work together: batches, policies, connectors, states, restores and errors."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.connectors import MeanStdFilter
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.errors import CheckpointError, ConfigError, RunnerStoppedError
from fastmarl.testing import CountingEnv

BOX, DISCRETE = gym.spaces.Box(-1e6, 1e6, (1,), np.float32), gym.spaces.Discrete(3)


class Echo(torch.nn.Module):
    """Says what it saw; acts by it."""

    def __init__(self, observation_space=BOX, action_space=DISCRETE):
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space

    def forward(self, batch):
        return {"actions": batch["obs"][:, 0].long() % 3, "saw": batch["obs"].clone()}


class TwoGroups(ArrayEnv):
    """Agents see 10 times their number plus the time; agent 1, of the first group, comes at env step 2."""

    def __init__(self, num_envs):
        groups = {"g": [0, 1], "h": [2, 3]}
        super().__init__(num_envs, groups, dict.fromkeys(groups, BOX), dict.fromkeys(groups, DISCRETE))
        self.received = []

    def reset(self, env_indices, out, *, seeds=None):
        self.t = 0
        self._observe(out)

    def step(self, actions, out):
        self.received.append({name: array.copy() for name, array in actions.items()})
        for array in actions.values():
            array[...] = -1
        self.t += 1
        self._observe(out)
        out.truncated[:] = self.t == 5

    def _observe(self, out):
        for first, group in zip((0, 2), out.groups.values(), strict=True):
            group.obs[...] = 10 * (first + np.arange(2)[:, None]) + self.t
        if self.t < 2:
            out.groups["g"].present[:, 1] = False
        elif self.t == 2:
            out.groups["g"].present[:, 1] = True


def batch_runner(**options):
    config = fastmarl.EnvRunnerConfig(
        env=lambda config: TwoGroups(config.num_envs),
        num_envs_per_env_runner=3,
        policies={"m0": Echo(), "m1": Echo()},
        policy_mapping_fn=lambda agent, episode: "m0" if agent == 0 else "m1",
        **options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def test_agents_that_join_another_groups_module_shift_no_observations():
    for episode in batch_runner().sample(num_timesteps=30):
        for agent, part in episode.agent_episodes.items():
            expected = 10 * agent + part.env_ts()
            assert part.get_observations()[:, 0].tolist() == expected.tolist()
            assert part.get_extra_model_outputs("saw")[:, 0].tolist() == expected[:-1].tolist()


def test_no_agent_gets_stale_actions_after_a_failing_module():
    runner = batch_runner()
    runner.sample(num_timesteps=6)
    good = runner.module["m1"].module.forward
    runner.module["m1"].module.forward = lambda batch: 1 / 0
    with pytest.raises(ZeroDivisionError):
        runner.sample(num_timesteps=3)
    runner.module["m1"].module.forward = good
    env = runner.env.envs[0]
    env.received.clear()
    runner.sample(num_timesteps=12, force_reset=True)
    for t, actions in enumerate(env.received):
        assert actions["g"][:, 0].tolist() == [t % 3] * 3
        assert actions["h"].tolist() == [[(20 + t) % 3, (30 + t) % 3]] * 3


def test_a_modules_own_array_is_not_the_envs_to_change():
    class Cached(Echo):
        answer = torch.ones(8, dtype=torch.int64)

        def forward(self, batch):
            return {"actions": self.answer[: len(batch["obs"])]}

    config = fastmarl.EnvRunnerConfig(
        env=lambda config: TwoGroups(config.num_envs), num_envs_per_env_runner=2, policies={"p": Cached()}
    )
    runner = fastmarl.MultiAgentEnvRunner(config)
    (first, *_) = runner.sample(num_timesteps=8)
    assert first.agent_episodes[2].get_actions().tolist() == [1] * 4


def test_a_module_that_takes_other_observations_is_refused():
    wide = gym.spaces.Box(-1e6, 1e6, (4,), np.float32)
    config = fastmarl.EnvRunnerConfig(
        env=lambda config: TwoGroups(config.num_envs), policies={"p": Echo(observation_space=wide)}
    )
    with pytest.raises(ConfigError, match=r"agents \[0, 1\] observe Box.*\(1,\).* a module for Box.*\(4,\)"):
        fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=1)


def test_leaves_find_their_places_by_name():
    """A module's Dict space may name its parts in another order than the envs'."""
    one, other = gym.spaces.Box(0, 99, (1,), np.float32), gym.spaces.Box(0, 99, (1,), np.float64)

    class Parts(ArrayEnv):
        def __init__(self, num_envs):
            space = gym.spaces.Dict([("b", one), ("a", other)])
            super().__init__(num_envs, {"g": ["x"]}, {"g": space}, {"g": DISCRETE})

        def reset(self, env_indices, out, *, seeds=None):
            self.step(None, out)

        def step(self, actions, out):
            out.groups["g"].obs["a"][...], out.groups["g"].obs["b"][...] = 1, 2

    class Sees(Echo):
        def forward(self, batch):
            assert batch["obs"]["a"].unique().tolist() == [1] and batch["obs"]["b"].unique().tolist() == [2]
            return {"actions": torch.zeros(len(batch["obs"]["a"]), dtype=torch.int64)}

    policy = Sees(observation_space=gym.spaces.Dict([("a", other), ("b", one)]))
    config = fastmarl.EnvRunnerConfig(env=lambda config: Parts(config.num_envs), policies={"p": policy})
    (chunk,) = fastmarl.MultiAgentEnvRunner(config).sample(num_timesteps=3)
    assert chunk.agent_episodes["x"].get_observations()["a"].tolist() == [[1]] * 4


def test_arrays_of_a_step_can_not_be_replaced():
    out = TwoGroups(2).new_arrays()
    with pytest.raises(AttributeError):
        out.groups["g"].obs = np.zeros((2, 2, 1))


class Stateful(CountingEnv):
    def state(self):
        return np.array([self.env_t])


def counting_runner(**options):
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=lambda config: Stateful(2, 5), **options))


def test_states_stay_where_frozen_policies_are_left_out():
    runner = counting_runner(record_env_state=True, policies_to_train=[], return_only_policies_to_train=True)
    (episode,) = runner.sample(num_episodes=1)
    assert episode.get_env_states()[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_module_that_can_not_be_added_leaves_the_connectors_alone():
    runner = counting_runner(env_to_module_connector=MeanStdFilter(), policies=["p"])
    runner.sample(num_episodes=1)
    before = runner.env_to_module.get_state()["p"]["MeanStdFilter"]["stats"][0]["count"]
    with pytest.raises(ConfigError, match="no action distribution for Text"):
        runner.add_module("p", Echo(runner.get_spaces()["p"][0], gym.spaces.Text(3)), override=True)
    assert runner.env_to_module.get_state()["p"]["MeanStdFilter"]["stats"][0]["count"] == before > 0


def test_a_snapshot_takes_connectors_and_their_state():
    runner = counting_runner(env_to_module_connector={"main": MeanStdFilter()}, policies=["main"])
    runner.sample(num_episodes=1)
    runner.add_module(
        "v1", new_agent_to_module_mapping_fn=lambda agent, episode: "v1", env_to_module_connector=MeanStdFilter()
    )
    runner.env_to_module.set_state({"v1": runner.env_to_module.get_state()["main"]})
    runner.sample(num_episodes=2)
    counts = {id_: each["MeanStdFilter"]["stats"][0]["count"] for id_, each in runner.env_to_module.get_state().items()}
    assert counts == {"main": 12, "v1": 12 + 24}
    runner.remove_module("main")
    again = fastmarl.MultiAgentEnvRunner(runner.config)
    assert set(again.env_to_module) == {"v1"}


def test_a_failed_restore_changes_nothing(tmp_path):
    options = {"env_to_module_connector": MeanStdFilter(), "seed": 0}
    big, small = (counting_runner(model_config={"fcnet_hiddens": [n]}, **options) for n in (8, 4))
    big.sample(num_episodes=1)
    big.save_to_path(tmp_path)
    small.set_weights(small.get_weights(), weights_seq_no=3)
    before = small.get_state()
    with pytest.raises(CheckpointError, match="default_policy"):
        small.restore_from_path(tmp_path)
    after = small.get_state()
    assert after["weights_seq_no"] == 3
    assert after["env_to_module_connector"]["default_policy"]["MeanStdFilter"]["stats"][0]["count"] == 0
    for name, weights in before["rl_module"]["default_policy"].items():
        np.testing.assert_array_equal(after["rl_module"]["default_policy"][name], weights)


def test_episodes_survive_a_failing_callback():
    failures = [True]

    def fail_once(**kwargs):
        if failures and failures.pop():
            raise ZeroDivisionError

    runner = counting_runner(callbacks_on_sample_end=fail_once)
    with pytest.raises(ZeroDivisionError):
        runner.sample(num_episodes=2)
    assert len(runner.sample(num_episodes=1)) == 3


def test_without_envs_nothing_is_sampled():
    broken = []

    class Fragile(CountingEnv):
        def __init__(self, config):
            if broken:
                raise OSError("no display")
            super().__init__(2)

    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(env=Fragile))
    broken.append(True)
    with pytest.raises(OSError, match="no display"):
        runner.make_env()
    with pytest.raises(RunnerStoppedError, match=r"make_env\(\) failed"):
        runner.sample(num_timesteps=1)
    broken.clear()
    runner.make_env()
    assert len(runner.sample(num_episodes=1)) == 1
