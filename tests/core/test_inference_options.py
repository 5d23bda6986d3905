"""Options that change how torch runs modules: another dtype, and torch.compile. Both are opt-in."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.scripted import sines

import fastmarl
from fastmarl.errors import ConfigError
from fastmarl.modules import DefaultRLModule

KEYS = ("action_dist_inputs", "vf_preds")


def make_runner(**options):
    defaults = {"env": sines(), "model_config": {"fcnet_hiddens": [8]}, "num_envs_per_env_runner": 2, "seed": 1}
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{**defaults, **options}))


def outputs_of(runner):
    """The columns of the first agent."""
    chunk = runner.sample(num_timesteps=20, explore=False)[0]
    part = chunk.agent_episodes["agent_0"]
    return {key: part.get_extra_model_outputs(key) for key in KEYS}, part


LSTM = {"model_config": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4}}


@pytest.mark.parametrize("options", [{}, LSTM], ids=["mlp", "lstm"])
def test_bfloat16_is_near_and_recorded_as_float32(options):
    near, exact = make_runner(**options, inference_dtype="bfloat16"), make_runner(**options)
    assert near.inference_backends == {"default_policy": "torch: inference_dtype is bfloat16"} or options
    (got, part), (expected, _) = outputs_of(near), outputs_of(exact)
    for key in KEYS:
        assert got[key].dtype == np.float32
        np.testing.assert_allclose(got[key], expected[key], atol=0.02)
        assert not np.array_equal(got[key], expected[key])  # it was in use
    if options:
        assert part.get_extra_model_outputs("state_in")["h"].dtype == np.float32
    assert {parameter.dtype for parameter in near.module.parameters()} == {torch.float32}


def test_bfloat16_explores(rng):
    continuous = sines(action_space=gym.spaces.Box(-1, 1, (2,), np.float32))
    runner = make_runner(env=continuous, inference_dtype="bfloat16")
    part = runner.sample(num_timesteps=20)[0].agent_episodes["agent_0"]
    assert part.get_actions().dtype == np.float32 and np.isfinite(part.get_extra_model_outputs("action_logp")).all()


class Counted(DefaultRLModule):
    """Counts Python's calls of its forward method."""

    n_calls = 0

    def _forward(self, batch, **kwargs):
        type(self).n_calls += torch.compiler.is_compiling() is False
        return super()._forward(batch)


class Remembers(DefaultRLModule):
    """Has a method of its own, so that torch runs it."""

    def _remember(self, obs, state):
        return super()._remember(obs, state)


REMEMBERS = {**LSTM, "rl_module_spec": fastmarl.RLModuleSpec(module_class=Remembers)}
COMPILED = {"torch_compile_worker": True, "torch_compile_worker_dynamo_backend": "eager"}  # only traced: that is quick


@pytest.fixture
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize("options", [REMEMBERS, {"rl_module_spec": fastmarl.RLModuleSpec(module_class=Counted)}])
def test_compiled_modules_act_as_others(options):
    compiled, called = make_runner(**options, **COMPILED), make_runner(**options)
    assert compiled.inference_backends["default_policy"].startswith("torch.compile: ")
    for _ in range(2):
        (got, _), (expected, _) = outputs_of(compiled), outputs_of(called)
        for key in KEYS:
            np.testing.assert_allclose(got[key], expected[key], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh_dynamo")
def test_it_is_compiled_and_weights_are_read_at_each_call():
    spec = fastmarl.RLModuleSpec(module_class=Counted)
    runner = make_runner(rl_module_spec=spec, **COMPILED)
    runner.sample(num_timesteps=20)
    Counted.n_calls = 0
    runner.sample(num_timesteps=40)
    assert Counted.n_calls == 0
    runner.set_state(make_runner(rl_module_spec=spec, seed=9).get_state("rl_module"))
    called = make_runner(rl_module_spec=spec, seed=9)
    (got, part), module = outputs_of(runner), called.module["default_policy"]
    with torch.no_grad():
        expected = module({"obs": torch.from_numpy(part.get_observations()[:-1])})
    np.testing.assert_allclose(got["vf_preds"], expected["vf_preds"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_native_inference_goes_before_it():
    assert make_runner(**COMPILED).inference_backends == {"default_policy": "native"}


@pytest.mark.usefixtures("_fresh_dynamo")
def test_a_method_that_was_replaced_is_called_as_it_is():
    runner = make_runner(**REMEMBERS, **COMPILED)
    module = runner.module["default_policy"]
    seen = []
    forward = module.forward_exploration
    module.forward_exploration = lambda batch, **kwargs: seen.append(len(batch["obs"])) or forward(batch, **kwargs)
    runner.sample(num_timesteps=8)
    assert len(seen) == 4
    assert runner.inference_backends == {"default_policy": "torch: Remembers overrides forward_exploration()"}


@torch._dynamo.register_backend(name="fails")
def fail(graph, example_inputs):
    raise RuntimeError("no compiler found")


@pytest.mark.slow
@pytest.mark.usefixtures("_fresh_dynamo")
def test_failures_to_compile_raise_with_advice():
    options = {**REMEMBERS, "torch_compile_worker": True}
    runner = make_runner(**options, torch_compile_worker_dynamo_backend="fails")
    with pytest.raises(Exception, match="no compiler found") as raised:
        runner.sample(num_timesteps=2)
    assert "torch_compile_worker=False" in "".join(raised.value.__notes__)
    with pytest.raises(ConfigError, match="none_such"):
        make_runner(**options, torch_compile_worker_dynamo_backend="none_such")
