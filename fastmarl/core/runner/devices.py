"""Which device a runner's modules are on."""

import math

import torch

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.errors import ConfigError


def choose_device(config: EnvRunnerConfig) -> torch.device:
    """By the options `device` and `num_gpus_per_env_runner`.

    Raises:
        ConfigError: there is no such device here.
    """
    name, num_gpus = config.device, config.num_gpus_per_env_runner
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cpu" and num_gpus > 0:
        name = "cuda"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f'device must be "cpu", "cuda", "cuda:1", ... or "auto", got {name!r}')
    if device.type == "cuda":
        _check_cuda(config, device)
        if name == "cuda" and num_gpus > 0:
            return torch.device("cuda", _share(config))
    return device


def _check_cuda(config: EnvRunnerConfig, device: torch.device) -> None:
    asked = f"device={config.device!r}, num_gpus_per_env_runner={config.num_gpus_per_env_runner:g}"
    if not torch.cuda.is_available():
        built_for = getattr(torch.version, "cuda", None) or "the CPU alone"
        raise ConfigError(f"{asked} asks for a GPU, but torch {torch.__version__}, built for {built_for}, finds none; "
                          f'device="auto" takes a GPU only if there is one')  # fmt: skip
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{asked} asks for GPU {device.index}, but torch finds {torch.cuda.device_count()}")


def _share(config: EnvRunnerConfig) -> int:
    """The index of this runner's (first) GPU. If a runner sees only its own GPUs, as under Ray, it is the first."""
    num_gpus, visible = config.num_gpus_per_env_runner, torch.cuda.device_count()
    if visible <= math.ceil(num_gpus):
        return 0
    index = math.floor(max(0, config.worker_index - 1) * num_gpus)
    if index >= visible:
        raise ConfigError(f"runner {config.worker_index} with {num_gpus:g} GPUs each would need GPU {index}, but torch "
                          f"finds {visible}; lower num_gpus_per_env_runner, or name a device")  # fmt: skip
    return index
