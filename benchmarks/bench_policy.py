"""One action of a deployed policy, a default net of 64-64 and a row of 18 numbers, and the bare compiled net."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import fastmarl
from fastmarl.connectors import FrameStacking, MeanStdFilter
from fastmarl.core.nets.native import NativeModule
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.modules import DefaultRLModule
from fastmarl.testing import CountingEnv

SPACE, CHOICE = gym.spaces.Box(-1, 1, (18,), np.float32), gym.spaces.Discrete(5)
KINDS = {
    "greedy": {},
    "carried state": {"state": {}},
    "by agent": {"agent_id": "agent_0"},
    "exploring": {"explore": True},
    "masked": {"action_mask": np.array([1, 0, 1])},
}
MODULES = {
    "filter and frames": {"env_to_module_connector": [MeanStdFilter(), FrameStacking(3)]},
    "LSTM": {"model_config": {"fcnet_hiddens": (64, 64), "use_lstm": True, "lstm_cell_size": 64}},
    "in torch": {"native_inference": False},
}


def policy_of(**options):
    torch.set_num_threads(1)
    spec = {"env": lambda config: CountingEnv(2, 50, 18), "model_config": {"fcnet_hiddens": (64, 64)}}
    runner = fastmarl.MultiAgentEnvRunner(fastmarl.EnvRunnerConfig(**(spec | options)))
    runner.sample(num_timesteps=10)
    policy = fastmarl.Policy.from_runner(runner)
    space, _ = policy.get_spaces()["default_policy"]
    return policy, np.random.default_rng(0).standard_normal(space.shape).astype(space.dtype)


@pytest.mark.benchmark(group="an action")
def bench_bare_net(benchmark):
    torch.set_num_threads(1)
    module = DefaultRLModule(SPACE, CHOICE, model_config={"fcnet_hiddens": (64, 64)}).eval()
    net = NativeModule(module, RowLayout(SPACE), torch.device("cpu"), allowed=True)
    obs = np.random.default_rng(0).standard_normal((1, 18), np.float32)
    logits, *_ = benchmark(net.forward, [obs])
    assert logits.shape == (1, 5)


@pytest.mark.benchmark(group="an action")
@pytest.mark.parametrize("kind", KINDS)
def bench_act(benchmark, kind):
    policy, obs = policy_of()
    benchmark(policy.act, obs, **KINDS[kind])


@pytest.mark.benchmark(group="an action")
@pytest.mark.parametrize("kind", MODULES)
def bench_act_of(benchmark, kind):
    policy, obs = policy_of(**MODULES[kind])
    benchmark(policy.act, obs)


@pytest.mark.benchmark(group="an action")
@pytest.mark.parametrize("n", [4, 64])
def bench_act_batch(benchmark, n):
    policy, obs = policy_of()
    actions = benchmark(policy.act_batch, dict.fromkeys(range(n), obs))
    assert len(actions) == n
