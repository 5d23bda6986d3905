"""Tests that need a GPU: CUDA graphs behave like the tape of test_graph_inference.py."""

import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from support.scripted import counting, scripted, sines

import fastmarl
from fastmarl.modules import DefaultRLModule

pytestmark = pytest.mark.gpu

IMAGE = gym.spaces.Box(0, 255, (20, 20, 3), np.uint8)


def image(agent, t):
    return np.full(IMAGE.shape, 17 * int(agent[-1]) + 3 * t, np.uint8)


CONTINUOUS = gym.spaces.Box(-1, 1, (2,), np.float32)
TWO = {
    "policies": ["a", "b"],
    "policy_mapping_fn": lambda agent, episode: "a" if agent.endswith("0") else "b",
}
LSTM = {"model_config": {"fcnet_hiddens": [32], "use_lstm": True, "lstm_cell_size": 16}}
CNN = {"env": scripted(counting(3, 7), space=IMAGE, see=image)}


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    """Torch computes convolutions and LSTMs in TF32 otherwise, with three digits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def make_runner(**options):
    defaults = {"env": sines(), "num_envs_per_env_runner": 5, "seed": 1, "model_config": {"fcnet_hiddens": [32, 32]}}
    return fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**{**defaults, **options}))


def logits_of(runner, n=40):
    """(episode's number, agent) -> logits."""
    return {
        (i, agent): part.get_extra_model_outputs("action_dist_inputs")
        for i, chunk in enumerate(runner.sample(num_timesteps=n, explore=False, force_reset=True))
        for agent, part in chunk.agent_episodes.items()
    }


def assert_close(got, expected, **tolerance):
    assert got.keys() == expected.keys()
    for key, logits in expected.items():
        np.testing.assert_allclose(got[key], logits, err_msg=str(key), **{"rtol": 1e-3, "atol": 1e-4, **tolerance})


@pytest.mark.parametrize("cuda_graphs", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, TWO, LSTM, CNN, {"env": sines(action_space=CONTINUOUS)}],
    ids=["mlp", "two", "lstm", "cnn", "box"],
)
def test_the_gpu_answers_as_the_cpu(options, cuda_graphs):
    on_gpu = make_runner(**options, num_gpus_per_env_runner=0.5, cuda_graphs=cuda_graphs)
    on_cpu = make_runner(**options)
    for _ in range(2):
        assert_close(logits_of(on_gpu), logits_of(on_cpu))
    for backend in on_gpu.inference_backends.values():
        assert backend == ("cuda graph, 1 batch size" if cuda_graphs else "torch: the device is cuda:0")


def test_bfloat16_is_near():
    near, exact = make_runner(device="cuda", inference_dtype="bfloat16"), make_runner()
    got, expected = logits_of(near), logits_of(exact)
    assert_close(got, expected, atol=0.05)
    assert any((got[key] != expected[key]).any() for key in expected)


def test_weights_that_change_in_place_or_are_replaced_act_at_once():
    on_gpu, on_cpu = make_runner(device="cuda"), make_runner()
    logits_of(on_gpu)
    state = make_runner(seed=9).get_state("rl_module")
    for runner in (on_gpu, on_cpu):
        runner.set_state(state)
    assert_close(logits_of(on_gpu), logits_of(on_cpu))
    for runner in (on_gpu, on_cpu):
        for i, parameter in enumerate(runner.module.parameters()):
            parameter.data = torch.full_like(parameter, 0.01 * i)
    assert_close(logits_of(on_gpu), logits_of(on_cpu))


def test_each_replay_makes_new_draws_and_a_seed_repeats_them():
    def actions(runner):
        return [
            part.get_actions().tolist()
            for chunk in runner.sample(num_timesteps=200)
            for part in chunk.agent_episodes.values()
        ]

    first, second, other = (actions(make_runner(device="cuda", seed=seed)) for seed in (1, 1, 2))
    assert first == second != other
    assert {action for part in first for action in part} == {0, 1, 2}


class Peeking(DefaultRLModule):
    capturable = True

    def _forward(self, batch, **kwargs):
        outputs = super()._forward(batch)
        return outputs if outputs["vf_preds"].sum().item() < 1e9 else {}


def test_a_failed_capture_leaves_a_gpu_that_works():
    policies = {"a": fastmarl.RLModuleSpec(module_class=Peeking), "b": None}
    on_gpu, on_cpu = make_runner(**{**TWO, "policies": policies}, device="cuda"), make_runner(**TWO)
    on_gpu.set_state(on_cpu.get_state("rl_module"))
    with pytest.warns(RuntimeWarning, match="module 'a' cannot be captured"):
        assert_close(logits_of(on_gpu), logits_of(on_cpu))
    assert_close(logits_of(on_gpu), logits_of(on_cpu))
    assert on_gpu.inference_backends["b"] == "cuda graph, 1 batch size"
    assert on_gpu.inference_backends["a"].startswith("torch: it cannot be captured")
    on_gpu.sample(num_timesteps=20)  # "a" draws operation by operation
    torch.rand(1, device="cuda")
    torch.cuda.empty_cache()


def test_a_capture_leaves_memory_that_others_have_cached():
    torch.empty(2**28, dtype=torch.uint8, device="cuda")
    cached = torch.cuda.memory_reserved()
    logits_of(make_runner(device="cuda"))
    assert torch.cuda.memory_reserved() >= cached


def test_another_thread_can_use_the_gpu_while_graphs_are_captured():
    stop, passes, failures = threading.Event(), [], []

    def learn():
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        try:
            while not stop.is_set():
                size = 1 + 7919 * len(passes) % 100_000  # more than any before, now and then
                (torch.ones(size, 64, device="cuda") @ weight).mean().backward()
                passes.append(weight.grad.sum().item())
        except Exception as error:
            failures.append(error)

    learner = threading.Thread(target=learn)
    learner.start()
    try:
        for n in range(1, 30):
            logits_of(make_runner(device="cuda", num_envs_per_env_runner=n), n=3 * n)
    finally:
        stop.set()
        learner.join()
    assert not failures and len(passes) > 1


@pytest.mark.filterwarnings("default")  # torch's compiler warns of its own code, and of what would be faster
def test_compiled_modules_can_be_captured():
    on_gpu, on_cpu = make_runner(device="cuda", torch_compile_worker=True), make_runner()
    assert_close(logits_of(on_gpu), logits_of(on_cpu))
    assert on_gpu.inference_backends == {"default_policy": "cuda graph, 1 batch size"}
