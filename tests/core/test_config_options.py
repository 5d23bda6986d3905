"""Options without effect are errors, NumPy integers count as integers, and environments get the right context."""

import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.bench import measure_relative_speed
from fastmarl.connectors import FrameStacking
from fastmarl.core.config import SWITCHES
from fastmarl.errors import ConfigError
from fastmarl.modules import DefaultRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from fastmarl.testing import CountingEnv


class Env(CountingEnv):
    made: list = []  # noqa: RUF012

    def __init__(self, config):
        self.made.append(config)
        super().__init__(2, episode_length=5)


def make_runner(**options):
    options = {"env": Env, "num_envs_per_env_runner": 2, "seed": 1, **options}
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**options))


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"num_env_workers": 2}, 'gym_env_vectorize_mode="async"'),
        ({"step_timeout_s": 5}, 'gym_env_vectorize_mode="async"'),
        ({"env_worker_start_method": "fork"}, 'gym_env_vectorize_mode="async"'),
        ({"failed_episodes": "discard"}, "restart_failed_sub_environments=True"),
        ({"max_restarts": 9}, "restart_failed_sub_environments=True"),
        ({"torch_compile_worker_dynamo_backend": "eager"}, "torch_compile_worker=True"),
        ({"torch_compile_worker_dynamo_mode": "max-autotune"}, "torch_compile_worker=True"),
    ],
    ids=str,
)
def test_an_option_without_effect_is_an_error(options, needed):
    ((name, value),) = options.items()
    with pytest.raises(ConfigError) as error:
        fastmarl.EnvRunnerConfig(env=Env, **options)
    assert str(error.value) == f"{name}={value!r} has no effect without {needed}"
    switch, _, on = needed.partition("=")
    fastmarl.EnvRunnerConfig(env=Env, **options, **{switch: on.strip('"') if '"' in on else True})


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_more_parts_than_envs_are_an_error(mode):
    options = {"env": Env, "num_envs_per_env_runner": 2, "gym_env_vectorize_mode": mode}
    with pytest.raises(ConfigError, match="worker_num_splits=3 exceeds num_envs_per_env_runner=2"):
        fastmarl.EnvRunnerConfig(**options, worker_num_splits=3)
    fastmarl.EnvRunnerConfig(**options, worker_num_splits=2)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        ({"agent_0": "p"}, "policy_mapping_fn must be callable, got {'agent_0': 'p'}"),
        (lambda agent_id: "p", r"policy_mapping_fn must accept \(agent_id, episode\): too many positional arguments"),
        (lambda agent_id, worker, episode: "p", ".agent_id, episode.: missing a required argument: 'episode'"),
    ],
)
def test_a_mapping_that_can_not_be_called_as_it_will_be_is_refused(mapping, text):
    with pytest.raises(ConfigError, match=text):
        fastmarl.EnvRunnerConfig(env=Env, policies=["p"], policy_mapping_fn=mapping)
    runner = make_runner(policies=["p"])
    with pytest.raises(ConfigError, match=text):
        runner.set_policy_mapping_fn(mapping)
    fastmarl.EnvRunnerConfig(env=Env, policies=["p"], policy_mapping_fn=lambda agent_id, *args, **kwargs: "p")


class Third(RLModule):
    def _forward(self, batch, **kwargs):
        return {"actions": torch.full((len(batch["obs"]),), 2)}


def test_a_spec_for_several_modules_is_one_for_each():
    several = MultiRLModuleSpec({"q": RLModuleSpec(module_class=Third)})
    options = {"policy_mapping_fn": lambda agent, episode: "pq"[agent == "agent_1"], "rl_module_spec": several}
    runner = make_runner(policies=["p", "q"], **options)
    assert [type(runner.module[each]) for each in "pq"] == [DefaultRLModule, Third]
    for chunk in runner.sample(num_timesteps=8):
        assert (chunk.agent_episodes["agent_1"].get_actions() == 2).all()
    assert isinstance(make_runner(policies={"p": RLModuleSpec(), "q": None}, **options).module["q"], Third)
    with pytest.raises(ConfigError, match=r"rl_module_spec has .* ids \['q'\]; choose from \['p', 'r'\]"):
        make_runner(policies=["p", "r"], **options)


INTEGERS = ["num_envs_per_env_runner", "rollout_fragment_length", "episode_lookback_horizon", "worker_num_splits",
            "metrics_num_episodes_for_smoothing", "worker_index", "seed"]  # fmt: skip


@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int64])
def test_integers_of_numpy_are_integers(kind):
    config = fastmarl.EnvRunnerConfig(env=Env, **{name: kind(1) for name in INTEGERS}, reward_scale=np.float32(2))
    assert {type(getattr(config, name)) for name in INTEGERS} == {int}
    runner = fastmarl.MultiAgentEnvRunner(config)
    assert sum(len(chunk) for chunk in runner.sample(num_timesteps=kind(4))) == 4
    assert len(runner.sample(num_episodes=kind(2))) == 2
    assert FrameStacking(kind(2)).num_frames == 2
    options = {"gym_env_vectorize_mode": "async", "num_envs_per_env_runner": 3}
    made = fastmarl.EnvRunnerConfig(env=Env, env_batch_size=kind(2), num_env_workers=kind(1), **options)
    assert (type(made.env_batch_size), type(made.num_env_workers)) == (int, int)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(1), "1"])
def test_non_integers_are_refused(value):
    for name in INTEGERS:
        with pytest.raises(ConfigError, match=f"{name} must be .*integer"):
            fastmarl.EnvRunnerConfig(env=Env, **{name: value})
    with pytest.raises(ConfigError, match="num_timesteps must be an integer"):
        make_runner().sample(num_timesteps=value)


@pytest.mark.parametrize("value", ["False", "no", 1, None])
def test_non_bools_are_refused(value):
    for name in SWITCHES:
        with pytest.raises(ConfigError, match=f"{name} must be True or False, got {value!r}"):
            fastmarl.EnvRunnerConfig(env=Env, **{name: value})
    runner = make_runner()
    with pytest.raises(ConfigError, match=f"explore must be True or False, got {value!r}"):
        runner.evaluate(1, explore=value)
    if value is not None:  # in sample() it stands for the configured value
        with pytest.raises(ConfigError, match=f"explore must be True or False, got {value!r}"):
            runner.sample(explore=value)


def test_bools_of_numpy_are_bools():
    switches = {"explore": np.True_, "respawn": np.False_, "keep_float64": np.True_}
    config = fastmarl.EnvRunnerConfig(env=Env, **switches)
    assert [getattr(config, name) for name in switches] == [True, False, True]
    assert {type(getattr(config, name)) for name in switches} == {bool}
    assert make_runner(explore=np.True_).sample(num_timesteps=2, explore=np.False_)


@pytest.mark.parametrize("name", ["env_config", "model_config"])
def test_options_that_are_no_dict_are_refused(name):
    with pytest.raises(ConfigError, match=f"{name} must be a dict, got 3"):
        fastmarl.EnvRunnerConfig(env=Env, **{name: 3})


@pytest.mark.parametrize("device", ["mps", "meta", "xpu", "nonsense"])
def test_other_devices_are_refused(device):
    with pytest.raises(ConfigError, match=f'device must be "cpu", "cuda", "cuda:1", ... or "auto", got {device!r}'):
        make_runner(device=device)


def fields_of(context):
    return context.worker_index, context.num_workers, context.vector_index, context.num_envs, context.remote


class Telling(Env):
    """Observes the context that it was created with."""

    def __init__(self, config):
        super().__init__(config)
        self.fields = fields_of(config)

    def _observations(self):
        return {agent: np.array(self.fields[:4], np.float32) + 10 * self.fields[4] for agent in self.possible_agents}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_env_contexts_have_worker_and_env_indices(mode):
    options = {"gym_env_vectorize_mode": "async", "env_worker_start_method": "fork"} if mode == "async" else {}
    runner = make_runner(env=Telling, worker_index=2, num_env_runners=5, **options)
    chunks = runner.sample(num_timesteps=2)
    runner.stop()
    for i, chunk in enumerate(chunks):
        seen = chunk.agent_episodes["agent_0"].get_observations()[0]
        assert seen.tolist() == [each + 10 * (mode == "async") for each in (2, 5, i, 2)]


def test_relative_speed_of_workers_is_measured_with_their_options():
    config = fastmarl.EnvRunnerConfig(
        env=Env,
        num_envs_per_env_runner=2,
        gym_env_vectorize_mode="async",
        num_env_workers=1,
        env_worker_start_method="fork",
        step_timeout_s=60,
    )
    assert measure_relative_speed(config, rounds=1, seconds=0.01).runner_us > 0


def test_a_model_config_that_no_module_is_made_with_is_an_error():
    small = {"fcnet_hiddens": [4]}
    instance = torch.nn.Linear(4, 3)
    own = RLModuleSpec(model_config=small)
    for policies in ({"p": instance}, {"p": own}):
        with pytest.raises(ConfigError, match=r"model_config=\{'fcnet_hiddens': \[4\]\} has no effect: all modules"):
            make_runner(policies=policies, model_config=small)
        make_runner(policies=policies)
    for spec in (instance, own):
        with pytest.raises(ConfigError, match="has no effect: all modules"):
            make_runner(rl_module_spec=spec, model_config=small)
    two = {"policies": {"p": None, "q": own}, "policy_mapping_fn": lambda agent, episode: "p", "model_config": small}
    runner = make_runner(**two)
    runner.remove_module("p", new_agent_to_module_mapping_fn=lambda agent, episode: "q")  # what is set stays
    assert runner.sample(num_timesteps=4, force_reset=True)
    make_runner(rl_module_spec=RLModuleSpec(module_class=DefaultRLModule), model_config=small)
