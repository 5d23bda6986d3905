"""Changes of a runner's config: checked at once, and in force when what they are about is made."""

import dataclasses
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.short_episodes import Short

import fastmarl
from fastmarl.connectors import FlattenObservations, MeanStdFilter
from fastmarl.errors import ConfigError, EnvCheckError, ObservationError, RunnerStoppedError
from fastmarl.runner.loop import config_changes

AT_ONCE = {
    "num_learners",
    "explore",
    "rollout_fragment_length",
    "train_batch_size_per_learner",
    "episodes_to_numpy",
    "batch_mode",
    "count_steps_by",
    "return_only_policies_to_train",
    "policy_mapping_fn",
    "policies_to_train",
    "callbacks_class",
    *(f"callbacks_{event}" for event in fastmarl.Callbacks.__dict__ if event.startswith("on_")),
}
SMALL = {"fcnet_hiddens": [8]}


def make_runner(**options):
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{"env": Short, "seed": 1, **options}))


def change(runner, **options):
    runner.config = dataclasses.replace(runner.config, **options)


def lengths(runner, **arguments):
    return [len(episode) for episode in runner.sample(**(arguments or {"num_episodes": 2}))]


def width(runner, module_id="default_policy"):
    return next(runner.module[module_id].parameters()).shape[0]


def test_each_option_is_in_force_at_one_time():
    groups = [config_changes.MAKE_ENV, config_changes.MAKE_MODULE, config_changes.ANY_MAKE, config_changes.FIXED]
    names = [name for group in groups for name in group] + sorted(AT_ONCE)
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(fastmarl.EnvRunnerConfig))


def test_envs_are_of_the_config_at_make_env():
    with make_runner() as runner:
        assert lengths(runner) == [5, 5]
        change(runner, env_config={"length": 3})
        assert runner.config.env_config == {"length": 3}
        assert lengths(runner) == [5, 5]
        runner.make_env()
        assert lengths(runner) == [3, 3]
        runner.config.env_config["length"] = 4  # its content
        runner.make_env()
        assert lengths(runner) == [4, 4]


def test_the_number_of_envs_changes_and_seeds_go_on():
    with make_runner() as runner, make_runner(num_envs_per_env_runner=3) as other:
        seeds = [episode.reset_seed for episode in runner.sample(num_episodes=2)]
        change(runner, num_envs_per_env_runner=3)
        assert runner.num_envs == 1
        runner.make_env()
        assert (runner.num_envs, len(runner.env.envs)) == (3, 3)
        episodes = runner.sample(num_episodes=3)
        of_other = [episode.reset_seed for episode in other.sample(num_episodes=9)]
        assert [episode.reset_seed for episode in episodes][1:] == of_other[1:3]
        assert not {episode.reset_seed for episode in episodes} & {*seeds}
        change(runner, num_envs_per_env_runner=1)
        runner.make_env()
        assert runner.sample(num_episodes=1)[0].reset_seed not in seeds


def test_modules_are_of_the_config_at_make_module():
    with make_runner(model_config={"fcnet_hiddens": [6]}) as runner:
        change(runner, model_config=SMALL)
        runner.make_env()
        assert width(runner) == 6
        runner.make_module()
        assert width(runner) == 8
        change(runner, model_config={}, rl_module_spec=fastmarl.RLModuleSpec(model_config={"fcnet_hiddens": [9]}))
        runner.make_module()
        assert width(runner) == 9
        assert lengths(runner) == [5, 5]


@pytest.mark.parametrize("components", [None, "rl_module", ["rl_module", "env_to_module_connector"]])
def test_t_of_exploration_goes_on_in_a_runner_that_takes_weights(components):
    spec = fastmarl.RLModuleSpec(module_class=Net)
    with make_runner(rl_module_spec=spec) as runner, make_runner(rl_module_spec=spec) as other:
        runner.sample(num_timesteps=20)
        other.set_state(runner.get_state(components))
        other.sample(num_timesteps=1)
        assert other.module["default_policy"].ran == [20]


def test_policies_wait_with_the_function_that_names_them():
    with make_runner(env_config={"n_agents": 2}, model_config=SMALL) as runner:
        change(
            runner,
            policies=["p0", "p1"],
            policy_mapping_fn=lambda agent, episode: f"p{agent[-1]}",
            policies_to_train=["p1"],
            explore=False,
        )
        (episode,) = runner.sample(num_episodes=1)
        assert {agent.module_id for agent in episode.agent_episodes.values()} == {"default_policy"}
        for call in (
            lambda: runner.add_module("p2"),
            lambda: runner.remove_module("default_policy"),
            lambda: runner.set_policy_mapping_fn(lambda agent, episode: "default_policy"),
        ):
            with pytest.raises(ConfigError, match=r"\['policies', .* not taken effect yet; call make_module\(\) first"):
                call()
        runner.make_module()
        (episode,) = runner.sample(num_episodes=1)
        assert [agent.module_id for agent in episode.agent_episodes.values()] == ["p0", "p1"]
        assert not runner.should_module_be_updated("p0")
        assert sorted(runner.get_state("rl_module")["rl_module"]) == ["p0", "p1"]


def test_a_mapping_function_of_the_same_policies_is_in_force_with_the_next_episode():
    options = {"policies": ["p0", "p1"], "policy_mapping_fn": lambda agent, episode: "p0", "model_config": SMALL}
    with make_runner(**options) as runner:
        change(runner, policy_mapping_fn=lambda agent, episode: "p1")
        (episode,) = runner.sample(num_episodes=1)
        assert episode.agent_episodes["agent_0"].module_id == "p1"


def test_changes_of_policies_leave_waiting_ones_of_envs():
    with make_runner(model_config=SMALL) as runner:
        change(runner, env_config={"length": 3})
        runner.add_module("other", new_agent_to_module_mapping_fn=lambda agent, episode: "other")
        assert (list(runner.config.module_specs), runner.config.env_config) == (
            ["default_policy", "other"],
            {"length": 3},
        )
        assert lengths(runner) == [5, 5]
        runner.make_env()
        assert lengths(runner) == [3, 3]


def test_amounts_and_exploration_are_in_force_at_once():
    with make_runner() as runner:
        change(runner, rollout_fragment_length=7)
        assert sum(lengths(runner, force_reset=True)) == 7
        change(runner, batch_mode="complete_episodes")
        assert sum(lengths(runner, force_reset=True)) == 5


class Net(fastmarl.RLModule):
    """Keeps the names of the methods that have run, and the `t` of exploration."""

    def setup(self):
        self.layer = torch.nn.Linear(3, 3)
        self.ran = []

    def _forward_inference(self, batch, **kwargs):
        self.ran.append("inference")
        return {"action_dist_inputs": self.layer(batch["obs"])}

    def _forward_exploration(self, batch, t=None, **kwargs):
        self.ran.append(t)
        return {"action_dist_inputs": self.layer(batch["obs"])}


def test_whether_to_explore_is_in_force_at_once():
    with make_runner(rl_module_spec=fastmarl.RLModuleSpec(module_class=Net)) as runner:
        runner.sample(num_timesteps=1)
        change(runner, explore=False)
        runner.sample(num_timesteps=1)
        runner.sample(num_timesteps=1, explore=True)
        assert runner.module["default_policy"].ran == [0, "inference", 2]


class Counting(fastmarl.Callbacks):
    made = 0

    def __init__(self):
        type(self).made += 1
        self.ends = 0

    def on_episode_end(self, *, env_runner, **kwargs):
        self.ends += 1
        env_runner.metrics.log_value("ends", self.ends, reduce="max")


def test_callbacks_are_called_from_the_next_call_on():
    seen, Counting.made = [], 0
    with make_runner(callbacks_class=Counting, rollout_fragment_length=5) as runner:
        runner.sample()
        change(runner, callbacks_on_sample_end=lambda samples, **kwargs: seen.append(len(samples)))
        runner.sample()
        assert seen == [1]
        assert (Counting.made, runner.get_metrics()["ends"]) == (1, 2)  # the same object
        change(runner, callbacks_class=None)
        runner.sample()
        assert np.isnan(runner.get_metrics()["ends"])  # none since the last report
        change(runner, callbacks_class=[Counting, Counting])
        assert Counting.made == 3
        with pytest.raises(ConfigError, match="on_sample_end is called with the keywords"):
            change(runner, callbacks_on_sample_end=lambda: None)
        assert runner.config.callbacks_class == [Counting, Counting]


def test_a_callback_may_change_options_that_need_no_rebuilding():
    def at_end(env_runner, **kwargs):
        change(env_runner, rollout_fragment_length=2)

    with make_runner(rollout_fragment_length=5, callbacks_on_sample_end=at_end) as runner:
        assert [sum(lengths(runner, force_reset=True)) for _ in range(2)] == [5, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 2}, "once a runner is created: seed is 1, got 2. Nothing was changed"),
        ({"worker_index": 3, "device": "cuda"}, "worker_index is 0, got 3; device is 'cpu', got 'cuda'"),
        ({"output": "folder"}, "output is None, got 'folder'"),
        ({"policies": {"p": torch.nn.Linear(3, 3)}, "model_config": SMALL}, "has no effect: all modules are instances"),
    ],
)
def test_changes_of_fixed_options_are_refused_and_change_nothing(options, message):
    with make_runner() as runner:
        before = runner.config
        with pytest.raises(ConfigError, match=message):
            change(runner, explore=False, **options)
        assert runner.config is before
        assert lengths(runner) == [5, 5]


def test_invalid_configs_and_envs_are_refused():
    with make_runner() as runner:
        with pytest.raises(ConfigError, match=r"must be an EnvRunnerConfig, got dict; .* dataclasses.replace"):
            runner.config = {"env": Short}
        with pytest.raises(EnvCheckError, match="not_registered"):
            change(runner, env="not_registered")
        assert runner.config.env is Short
    with pytest.raises(RunnerStoppedError):
        change(runner, explore=False)


def test_connectors_keep_their_state_unless_they_change():
    with make_runner(env_to_module_connector=[MeanStdFilter()]) as runner:
        runner.sample(num_timesteps=20)
        kept, known = runner.env_to_module, runner.env_to_module.get_state()
        runner.make_module()
        assert runner.env_to_module is kept
        assert str(runner.env_to_module.get_state()) == str(known)
        change(runner, env_to_module_connector=[MeanStdFilter(), FlattenObservations()])
        runner.make_env()
        assert runner.env_to_module is kept
        runner.make_module()
        assert list(runner.env_to_module["default_policy"].connectors[1:])
        assert str(runner.env_to_module.get_state()) != str(known)
        assert lengths(runner) == [5, 5]
        change(runner, env_config={"space": gym.spaces.Box(-1, 1, (4,), np.float32)})
        runner.make_env()
        runner.make_module()
        assert runner.env_to_module["default_policy"].sent_space.shape == (4,)
        assert lengths(runner) == [5, 5]


def test_envs_of_other_spaces_need_other_modules():
    with make_runner() as runner:
        change(runner, env_config={"space": gym.spaces.Box(-1, 1, (3,), np.float32)})  # other bounds alone
        runner.make_env()
        assert lengths(runner) == [5, 5]
        change(runner, env_config={"space": gym.spaces.Box(-1, 1, (4,), np.float32)})
        runner.make_env()
        for call in (runner.sample, lambda: runner.evaluate(1), lambda: runner.sample(random_actions=True)):
            with pytest.raises(
                ConfigError, match=r"\(3,\).* for agent 'agent_0', got .*\(4,\).*Call make_module\(\), then"
            ):
                call()
        runner.make_module()
        assert lengths(runner) == [5, 5]
        change(runner, env_config={})
        runner.make_env()
        with pytest.raises(ConfigError, match=r"make_module\(\), then"):
            runner.sample()
        change(runner, env_config={"space": gym.spaces.Box(-1, 1, (4,), np.float32)})
        runner.make_env()  # those of the modules again
        assert lengths(runner) == [5, 5]


def test_a_module_that_can_not_be_made_changes_nothing():
    with make_runner() as runner:
        change(runner, rl_module_spec=fastmarl.RLModuleSpec(module_class=lambda *args, **kwargs: 1 / 0))
        module = runner.module
        runner.sample(num_timesteps=3)
        with pytest.raises(ZeroDivisionError):
            runner.make_module()
        assert runner.module is module
        assert [episode.env_t_started for episode in runner.sample(num_timesteps=2)] == [3]


class Failing(Short):
    fails_to_make = fails_to_close = False

    def __init__(self, config):
        if Failing.fails_to_make:
            raise OSError("no licence")
        super().__init__(config)

    def close(self):
        if Failing.fails_to_close:
            raise OSError("simulator is gone")


@pytest.fixture
def failing(monkeypatch):
    def fails(make=False, close=False):
        monkeypatch.setattr(Failing, "fails_to_make", make)
        monkeypatch.setattr(Failing, "fails_to_close", close)

    return fails


@pytest.mark.parametrize("n", [1, 3])
def test_old_envs_that_fail_to_close_are_left(failing, n):
    with make_runner(env=Failing, num_envs_per_env_runner=n) as runner:
        old = runner.env.envs
        failing(close=True)
        with pytest.warns(UserWarning, match="closing the old envs failed; .* OSError.'simulator is gone'.") as warned:
            runner.make_env()
        assert len(warned) == 1
        assert warned[0].filename == __file__
        failing()
        assert not {*map(id, old)} & {*map(id, runner.env.envs)}
        assert lengths(runner) == [5, 5]


def test_a_runner_without_envs_is_not_healthy(failing):
    with make_runner(env=Failing) as runner:
        runner.assert_healthy()
        failing(make=True)
        change(runner, num_envs_per_env_runner=2)
        with pytest.raises(OSError, match="no licence"):
            runner.make_env()
        for call in (runner.assert_healthy, runner.sample, lambda: runner.evaluate(1)):
            with pytest.raises(RunnerStoppedError, match=r"make_env\(\) failed and .* call it again"):
                call()
        failing()
        runner.get_metrics()
        runner.set_state(runner.get_state("rl_module"))
        runner.make_env()
        runner.assert_healthy()
        assert runner.num_envs == 2
        assert lengths(runner) == [5, 5]


def test_a_failed_rollout_is_a_failed_make_env():
    with make_runner() as runner:
        change(runner, record_env_state=True)  # there is no state()
        with pytest.raises(EnvCheckError):
            runner.make_env()
        with pytest.raises(RunnerStoppedError):
            runner.assert_healthy()
        change(runner, record_env_state=False)
        runner.make_env()
        assert lengths(runner) == [5, 5]


def test_envs_may_move_to_worker_processes():
    with make_runner(num_envs_per_env_runner=2) as runner, make_runner(num_envs_per_env_runner=2) as other:
        change(runner, gym_env_vectorize_mode="async", num_env_workers=1, env_worker_start_method="fork")
        runner.make_env()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            seeds = [episode.reset_seed for episode in runner.sample(num_episodes=2)]
        assert seeds == [episode.reset_seed for episode in other.sample(num_episodes=2)]


def test_the_wrong_observation_is_still_the_env_s_fault():
    bad = {"t": 1, "obs": np.zeros(7, np.float32)}
    with make_runner(env_config={"bad_at": bad}) as runner:
        runner.make_env()
        with pytest.raises(ObservationError):
            runner.sample(num_episodes=1)
