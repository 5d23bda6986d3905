"""A forward pass of the default net, 64-64 with a value head: compiled code and torch."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from fastmarl.core.nets.native import NativeModule
from fastmarl.core.spaces.layout import RowLayout
from fastmarl.modules import DefaultRLModule


@pytest.mark.benchmark(group="forward pass")
@pytest.mark.parametrize("n", [2, 64, 1024])
@pytest.mark.parametrize("backend", ["native", "torch"])
def bench_forward(benchmark, backend, n):
    torch.set_num_threads(1)
    space = gym.spaces.Box(-1, 1, (18,), np.float32)
    module = DefaultRLModule(space, gym.spaces.Discrete(5), model_config={"fcnet_hiddens": (64, 64)}).eval()
    compiled = NativeModule(module, RowLayout(space), torch.device("cpu"), allowed=True)
    obs = np.random.default_rng(0).standard_normal((n, 18), np.float32)
    batch = {"obs": torch.from_numpy(obs)}
    with torch.inference_mode():
        if backend == "native":
            logits, _, _ = benchmark(compiled.forward, [obs])
        else:
            logits = benchmark(module.forward_exploration, batch, t=0)["action_dist_inputs"].numpy()
        expected = module.forward_inference(batch)["action_dist_inputs"].numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-6)
