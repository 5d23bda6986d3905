"""What a runner keeps from one call to the next, whatever becomes of its episodes."""

import math
from collections.abc import Callable
from typing import Any

import torch

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.errors import ConfigError
from fastmarl.core.inference.backends.transfer import make_transfer
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.runner.building import check_module_options, make_env_to_module, make_modules
from fastmarl.core.runner.envs import Envs
from fastmarl.core.runner.metrics import RunnerMetrics
from fastmarl.core.runner.output import make_recorder
from fastmarl.core.vector.failures import Failures
from fastmarl.core.vector.seeds import ResetSeeds, Streams


class Resources:
    """A runner's config, envs, modules and connectors, random streams and counters.

    Attributes:
        config: what is in force; changes of modules replace it.
        has_envs: whether the envs are there: not after a `make_envs()` that failed.
        failures: what is done about envs that fail; it remembers restarts for as long as the envs are there.
        module: all modules.
        weights_seq_no: of the modules' weights.
        generator, rng: for the modules' exploration, and for random actions.
        change: of the modules, which has not come to its end: `put_module()` with its arguments.
        recorder: writes the record of actions, if there is to be one.
    """

    def __init__(self, config: EnvRunnerConfig):
        check_module_options(config)
        self.config = config
        self.weights_seq_no = 0
        self._coming_weights: tuple[dict[str, Any], int] | None = None
        self.change: Callable[[], None] | None = None
        self.streams = Streams(config.seed, config.worker_index, config.incarnation)
        self.seeds = ResetSeeds(self.streams, config.num_envs_per_env_runner, always=config.record_actions is not None)
        self.transfer = make_transfer(choose_device(config))
        self.generator = self.streams.torch_generator(self.transfer.device)
        self.rng = self.streams.numpy_generator()
        self.counts = RunnerMetrics(config.metrics_num_episodes_for_smoothing)
        self._create_envs()
        try:
            self.env_to_module = make_env_to_module(config, self.envs)
            self.module = self.new_modules()
            self.recorder = make_recorder(config, self.envs.all[0])
        except BaseException:
            self.envs.close()
            raise

    @property
    def num_envs(self) -> int:
        return self.config.num_envs_per_env_runner

    def close(self) -> None:
        """Close the envs, and the record of actions."""
        try:
            self.envs.close()
        finally:
            if self.recorder is not None:
                self.recorder.close()

    def make_envs(self) -> None:
        """Close the envs, and create others."""
        self.has_envs = False
        self.envs.close()
        self._create_envs()

    def _create_envs(self) -> None:
        config = self.config
        self.envs = Envs(config)
        self.failures = Failures(
            self.counts.failures,
            restart=config.restart_failed_sub_environments,
            max_restarts=config.max_restarts,
            keep_episodes=config.failed_episodes == "truncate",
        )
        self.has_envs = True

    def new_modules(self) -> MultiRLModule:
        """New modules, with fresh weights unless they are given as instances."""
        with self.streams.torch_seeded():
            module = make_modules(self.config, self.envs, self.env_to_module)
        module.to(self.transfer.device)
        return module

    def put_module(
        self, module_id: str, module: RLModule | None, connectors: ModuleConnectors | None, config: EnvRunnerConfig
    ) -> None:
        """Have a module, or (None) none under this id, in place of what is there; `config` is in force then."""
        self.env_to_module.put(module_id, connectors)
        if module is not None:
            self.module.add_module(module_id, module, override=True)
        elif module_id in self.module:
            self.module.remove_module(module_id)
        self.config = config

    # Changes that come whole: what interrupts one leaves the rest to `finish()`.

    def take_weights(self, weights: dict[str, Any], seq_no: int) -> None:
        """Have these weights, by module id; others than those of modules that are there are left out."""
        self._coming_weights = weights, seq_no
        self.finish_weights()

    def finish(self) -> None:
        """Finish what was interrupted."""
        self.finish_weights()
        self.finish_change()

    def finish_weights(self) -> None:
        if self._coming_weights is None:
            return
        weights, seq_no = self._coming_weights
        try:
            self.module.set_state({module_id: weights[module_id] for module_id in weights if module_id in self.module})
        except Exception:  # of a module's own set_state()
            self._coming_weights = None
            raise
        self.weights_seq_no = seq_no
        self._coming_weights = None

    def finish_change(self) -> None:
        if self.change is not None:
            self.change()
            self.change = None


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
