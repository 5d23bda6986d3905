"""Parts of a runner that persist across episodes and calls."""

import math
import warnings
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import torch

from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS, EnvToModule
from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.errors import ConfigError, RunnerStoppedError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.nets.transfer import make_transfer
from fastmarl.core.spaces.layout import serves
from fastmarl.core.store.agent_spaces import Spaces
from fastmarl.core.vector.failures import Failures
from fastmarl.core.vector.seeds import ResetSeeds, Streams
from fastmarl.runner.loop.building import check_module_options, make_env_to_module, make_modules
from fastmarl.runner.loop.envs import Envs
from fastmarl.runner.loop.output import make_recorder
from fastmarl.runner.loop.runner_metrics import RunnerMetrics

OF_POLICIES = ("policies", "policy_mapping_fn", "policies_to_train", *CONNECTOR_OPTIONS)


class Resources:
    """Config, envs, modules and connectors, random streams and counters of a runner.

    Attributes:
        config: The active config, replaced when modules change.
        wanted: The config set by the user; some options wait for the next `make_env()` or `make_module()`.
        has_envs: False after a failed `make_env()`.
        counts, metrics: The counters, and the logger that reads them.
        failures: Handles failing envs, and counts restarts as long as the envs exist.
        module: All modules.
        weights_seq_no: Sequence number of the current weights.
        generator, rng: Random streams for module exploration and for random actions.
        change: `put_module()` with its arguments while a module change is unfinished, else None.
        recorder: Writes the record of actions, if enabled in the config.
        steps_before: Module id -> env steps before this runner, for exploration schedules.
    """

    def __init__(self, config: EnvRunnerConfig):
        check_module_options(config)
        self.config = self.wanted = config
        self.weights_seq_no = 0
        self._coming_weights: tuple[dict[str, Any], int] | None = None
        self.change: Callable[[], None] | None = None
        self.steps_before: dict[str, int] = {}
        self.streams = Streams(config.seed, config.stream_index, config.incarnation)
        self.seeds = ResetSeeds(self.streams, config.num_envs_per_env_runner, always=config.record_actions is not None)
        self.transfer = make_transfer(choose_device(config))
        self.generator = self.streams.torch_generator(self.transfer.device)
        self.rng = self.streams.numpy_generator()
        self.counts = RunnerMetrics(config.metrics_num_episodes_for_smoothing)
        self.metrics = self.counts.lend_logger()
        self.envs = Envs(config)
        self.failures = self._new_failures()
        self.has_envs = True
        self._misfits: dict[Hashable, tuple[Spaces, Spaces]] = {}
        try:
            self._spaces_made_for = _known_spaces(self.envs)
            self.env_to_module = make_env_to_module(config, self.envs)
            self.module = self._new_modules(config, self.env_to_module)
            self.recorder = make_recorder(config, self.envs.all[0])
        except BaseException:
            self.envs.close()
            raise

    @property
    def num_envs(self) -> int:
        return self.config.num_envs_per_env_runner

    def check_envs(self) -> None:
        """Raise RunnerStoppedError if the runner has no envs."""
        if not self.has_envs:
            raise RunnerStoppedError("make_env() failed and the envs are closed; call it again")

    def check_modules(self) -> None:
        """Raise ConfigError if the modules were built for different spaces than the envs have."""
        if self._misfits:
            agent, *others = self._misfits
            before, now = self._misfits[agent]
            more = f" (also changed for the agents {others!r:.200})" if others else ""
            raise ConfigError(f"make_env() has changed the spaces for which the modules were built: expected {before} "
                              f"for agent {agent!r}, got {now}{more}. Call make_module(), then set_weights() to reuse "
                              f"the old weights where they fit"
                              )  # fmt: skip

    def close(self) -> None:
        """Close the envs and the record of actions."""
        try:
            self.envs.close()
        finally:
            if self.recorder is not None:
                self.recorder.close()

    def make_envs(self, config: EnvRunnerConfig) -> None:
        """Replace the envs with new ones built from `config`, which becomes active.

        An error while closing the old envs only causes a warning. `has_envs` is False until the caller has rebuilt its
        rollout.
        """
        self.has_envs = False
        try:
            self.envs.close()
        except Exception as error:
            warnings.warn(f"closing the old envs failed; creating new ones anyway: {error!r}", stacklevel=4)
        envs = Envs(config)
        try:
            seeds = self.seeds
            if config.num_envs_per_env_runner != len(seeds):
                always = config.record_actions is not None
                seeds = ResetSeeds(self.streams, config.num_envs_per_env_runner, always=always)
                seeds.set_state(self.seeds.get_state())
            uses_bounds = config.normalize_actions or config.clip_actions
            misfits = _misfits(self._spaces_made_for, _known_spaces(envs), bounds=uses_bounds)
            recorder = make_recorder(config, envs.all[0], self.recorder)
        except BaseException:
            envs.close()
            raise
        vars(self).update(config=config, envs=envs, seeds=seeds, recorder=recorder, _misfits=misfits)
        self.failures = self._new_failures()

    def make_modules(self, config: EnvRunnerConfig) -> None:
        """Replace the modules with new ones built from `config`, which becomes active.

        Modules get fresh weights unless passed as instances. Connectors are unchanged unless their option or the spaces
        of the envs have changed.
        """
        check_module_options(config)
        env_to_module = make_env_to_module(config, self.envs, self.config, self.env_to_module)
        if env_to_module == self.env_to_module:
            env_to_module = self.env_to_module
        module = self._new_modules(config, env_to_module)
        recorder = make_recorder(config, self.envs.all[0], self.recorder)
        changed = {"env_to_module": env_to_module, "module": module, "recorder": recorder}
        vars(self).update(config=config, **changed, _misfits={}, _spaces_made_for=_known_spaces(self.envs))

    def _new_failures(self) -> Failures:
        config = self.config
        return Failures(
            self.counts.failures,
            restart=config.restart_failed_sub_environments,
            max_restarts=config.max_restarts,
            keep_episodes=config.failed_episodes == "truncate",
        )

    def _new_modules(self, config: EnvRunnerConfig, env_to_module: EnvToModule) -> MultiRLModule:
        module = self.streams.torch_seeded(lambda: make_modules(config, self.envs, env_to_module))
        module.to(self.transfer.device)
        return module

    def put_module(
        self, module_id: str, module: RLModule | None, connectors: ModuleConnectors | None, config: EnvRunnerConfig
    ) -> None:
        """Replace the module `module_id`, or remove it if `module` is None, and activate `config`."""
        self.env_to_module.put(module_id, connectors)
        if module is not None:
            self.module.add_module(module_id, module, override=True)
        elif module_id in self.module:
            self.module.remove_module(module_id)
        self.put_policies(config)

    def put_policies(self, config: EnvRunnerConfig) -> None:
        """Activate a config with different policies; all other pending options remain pending."""
        wanted = config
        if self.wanted is not self.config:
            wanted = replace(self.wanted, **{name: getattr(config, name) for name in OF_POLICIES})
        vars(self).update(config=config, wanted=wanted)

    # Atomic changes: `finish()` completes an interrupted one.

    def take_weights(self, weights: dict[str, Any], seq_no: int) -> None:
        """Set the weights of modules (module id -> weights); ignore unknown modules."""
        self._coming_weights = weights, seq_no
        self.finish_weights()

    def finish(self) -> None:
        """Complete any interrupted changes."""
        self.finish_weights()
        self.finish_change()

    def finish_weights(self) -> None:
        if self._coming_weights is None:
            return
        weights, seq_no = self._coming_weights
        try:
            self.module.set_state({module_id: weights[module_id] for module_id in weights if module_id in self.module})
        except Exception:  # raised by set_state() of a module
            self._coming_weights = None
            raise
        self.weights_seq_no = seq_no
        self._coming_weights = None

    def finish_change(self) -> None:
        if self.change is not None:
            self.change()
            self.change = None


def _known_spaces(envs: Envs) -> dict[Hashable, Spaces]:
    """Return agent id -> spaces for all agents known in advance."""
    return {agent: envs.spaces(0, agent) for agent in envs.named_agents}


def _misfits(
    before: dict[Hashable, Spaces], now: dict[Hashable, Spaces], *, bounds: bool
) -> dict[Hashable, tuple[Spaces, Spaces]]:
    """Return agent id -> spaces (before, now) of agents whose old module cannot be used with their new spaces."""
    return {
        agent: (before[agent], now[agent])
        for agent in before.keys() & now.keys()
        if not serves(before[agent], now[agent], bounds=bounds)
    }


def choose_device(config: EnvRunnerConfig) -> torch.device:
    """Choose the device from the options `device` and `num_gpus_per_env_runner`.

    Raises:
        ConfigError: If the device is invalid or not available on this machine.
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
    share = f"num_gpus_per_env_runner={config.num_gpus_per_env_runner:g}"
    asked = share if config.device == "cpu" else f"device={config.device!r}"
    if not torch.cuda.is_available():
        cuda = getattr(torch.version, "cuda", None)
        found = f"sees none for its CUDA {cuda}" if cuda else "was built without CUDA"
        raise ConfigError(f"{asked} needs a GPU, but this torch ({torch.__version__}) {found}; "
                          f'device="auto" uses a GPU only if there is one')  # fmt: skip
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"{asked} needs GPU {device.index}, but torch sees only {torch.cuda.device_count()} GPU(s)")


def _share(config: EnvRunnerConfig) -> int:
    """Return the index of the first GPU of this runner; 0 if only its GPUs are visible, as under Ray."""
    num_gpus, visible = config.num_gpus_per_env_runner, torch.cuda.device_count()
    if visible <= math.ceil(num_gpus):
        return 0
    index = math.floor(max(0, config.worker_index - 1) * num_gpus)
    if index >= visible:
        raise ConfigError(f"runner {config.worker_index} with {num_gpus:g} GPUs each needs GPU {index}, but torch sees "
                          f"only {visible} GPU(s); lower num_gpus_per_env_runner, or set device")  # fmt: skip
    return index
