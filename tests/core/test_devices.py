"""Which device the options ask for; GPUs are pretended."""

import pytest
import torch

import fastmarl
from fastmarl.errors import ConfigError
from fastmarl.runner.loop.resources import choose_device


@pytest.fixture
def gpus(monkeypatch):
    """Sets how many GPUs torch finds."""

    def pretend(n):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: n)

    return pretend


def chosen(**options):
    return str(choose_device(fastmarl.EnvRunnerConfig(env="mpe2.simple_spread_v3", **options)))


@pytest.mark.parametrize(
    ("n", "options", "expected"),
    [
        (0, {}, "cpu"),
        (2, {}, "cpu"),
        (0, {"device": "auto"}, "cpu"),
        (2, {"device": "auto"}, "cuda"),
        (2, {"device": "cuda:1"}, "cuda:1"),
        (1, {"num_gpus_per_env_runner": 1}, "cuda:0"),
        (1, {"num_gpus_per_env_runner": 0.1, "worker_index": 30}, "cuda:0"),
        (2, {"num_gpus_per_env_runner": 2, "worker_index": 5}, "cuda:0"),
        (2, {"num_gpus_per_env_runner": 0.25}, "cuda:0"),
        (2, {"num_gpus_per_env_runner": 0.25, "worker_index": 4}, "cuda:0"),
        (2, {"num_gpus_per_env_runner": 0.25, "worker_index": 5}, "cuda:1"),
        (4, {"num_gpus_per_env_runner": 2, "worker_index": 2}, "cuda:2"),
        (2, {"num_gpus_per_env_runner": 0.25, "worker_index": 5, "device": "cuda:0"}, "cuda:0"),
    ],
)
def test_devices(gpus, n, options, expected):
    gpus(n)
    assert chosen(**options) == expected


@pytest.mark.parametrize(
    ("n", "options", "problem"),
    [
        (0, {"device": "cuda"}, r"^device='cuda' needs a GPU, but this torch .* device=\"auto\""),
        (0, {"num_gpus_per_env_runner": 0.5}, "^num_gpus_per_env_runner=0.5 needs a GPU, but this torch"),
        (1, {"device": "cuda:1"}, "device='cuda:1' needs GPU 1, but torch sees only 1 GPU"),
        (2, {"num_gpus_per_env_runner": 0.5, "worker_index": 5}, "runner 5 .* needs GPU 2, but torch sees only 2 GPU"),
        (0, {"device": "gpu"}, "device must be .* got 'gpu'"),
    ],
)
def test_devices_that_are_not_there_are_an_error(gpus, n, options, problem):
    gpus(n)
    with pytest.raises(ConfigError, match=problem):
        chosen(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"num_gpus_per_env_runner": -1},
        {"num_gpus_per_env_runner": "1"},
        {"inference_dtype": "float16"},
        {"torch_compile_worker_dynamo_mode": "fast"},
    ],
)
def test_bad_options_are_an_error(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        chosen(**options)
