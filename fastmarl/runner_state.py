"""A runner's state, to and from other runners and folders."""

import os
from collections.abc import Collection
from typing import Any, Self

import numpy as np
import torch

from fastmarl.checkpoint import load_state, save_state
from fastmarl.config import EnvRunnerConfig
from fastmarl.connectors.env_to_module import EnvToModule
from fastmarl.errors import CheckpointError, ConfigError
from fastmarl.metrics import RunnerMetrics
from fastmarl.modules import MultiRLModule

STATE_COMPONENTS = (
    "rl_module",
    "weights_seq_no",
    "env_to_module_connector",
    "num_env_steps_sampled_lifetime",
    "random_state",
)


class RunnerState:
    """The methods of a runner that read and write its state."""

    module: MultiRLModule
    env_to_module: EnvToModule
    _weights_seq_no: int
    _counts: RunnerMetrics
    _generator: torch.Generator
    _rng: np.random.Generator

    def __init__(self, config: EnvRunnerConfig):
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def _stamp_actions(self) -> None:
        raise NotImplementedError

    def get_state(
        self, components: str | Collection[str] | None = None, *, not_components: str | Collection[str] | None = None
    ) -> dict[str, Any]:
        """What is needed to go on elsewhere: weights, counters, random streams; running episodes are not part of it.

        Args:
            components: only these of "rl_module" (with "weights_seq_no"), "env_to_module_connector",
                "num_env_steps_sampled_lifetime", "random_state".
            not_components: all but these.
        """
        state = {
            "rl_module": self.module.get_state(),
            "weights_seq_no": self._weights_seq_no,
            "env_to_module_connector": self.env_to_module.get_state(),
            "num_env_steps_sampled_lifetime": self._counts.lifetime["num_env_steps_sampled"],
            "random_state": {
                "torch": self._generator.get_state().numpy(),
                "numpy": self._rng.bit_generator.state,
            },
        }
        chosen = set(state) if components is None else _names(components)
        chosen -= set() if not_components is None else _names(not_components)
        if "rl_module" in chosen:
            chosen.add("weights_seq_no")
        return {name: value for name, value in state.items() if name in chosen}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take (parts of) what `get_state()` returned.

        Weights with a "weights_seq_no" above 0 are taken only if that is newer than the runner's own, as in RLlib.
        """
        _check_names(state)
        if "rl_module" in state:
            seq_no = int(state.get("weights_seq_no", 0))
            if seq_no == 0 or seq_no > self._weights_seq_no:
                self.module.set_state(state["rl_module"])
            if seq_no > 0:
                self._stamp_actions()
                self._weights_seq_no = seq_no
        if "env_to_module_connector" in state:
            self.env_to_module.set_state(state["env_to_module_connector"])
        if "num_env_steps_sampled_lifetime" in state:
            self._counts.lifetime["num_env_steps_sampled"] = int(state["num_env_steps_sampled_lifetime"])
        if "random_state" in state:
            self._generator.set_state(torch.as_tensor(np.array(state["random_state"]["torch"])))
            self._rng.bit_generator.state = state["random_state"]["numpy"]

    def get_weights(self, modules: Collection[str] | None = None) -> dict[str, Any]:
        """Module id -> its weights, by parameter name, as arrays."""
        return {
            module_id: weights
            for module_id, weights in self.module.get_state().items()
            if modules is None or module_id in modules
        }

    def set_weights(self, weights: dict[str, Any], weights_seq_no: int = 0) -> None:
        """Take weights as `get_weights()` returns them; `weights_seq_no` is recorded with each action from now on."""
        self.set_state({"rl_module": weights, "weights_seq_no": weights_seq_no})

    def save_to_path(self, path: str | os.PathLike) -> str:
        """Write `get_state()` to a folder; returns its path."""
        save_state(path, self.get_state())
        return str(path)

    def restore_from_path(self, path: str | os.PathLike) -> None:
        """Take the state from a folder that `save_to_path()` wrote.

        Raises:
            CheckpointError: the folder is missing, damaged, from a newer version, or of other modules; the runner
                keeps its state.
        """
        state = load_state(path)
        if not isinstance(state, dict) or "rl_module" not in state:
            raise CheckpointError(f"{path} is no state of a runner with the modules {list(self.module)}")
        saved, own = set(state["rl_module"]), set(self.module)
        if saved != own:
            raise CheckpointError(
                f"{path} is no state of a runner with the modules {list(self.module)}: it also has "
                f"{sorted(saved - own)}, and {sorted(own - saved)} are missing; add_module() and remove_module() first"
            )
        in_file = _outline(state.get("env_to_module_connector", {}))
        here = _outline(self.env_to_module.get_state())
        if in_file != here:
            raise CheckpointError(f"{path} has a state of the connectors {in_file}, but the runner has {here}")
        before, seq_no = self.module.get_state(), self._weights_seq_no
        self._weights_seq_no = 0
        try:
            self.set_state(state)
        except ConfigError as error:
            self.module.set_state(before)
            self._weights_seq_no = seq_no
            raise CheckpointError(f"{path}: {error}") from error

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike, config: EnvRunnerConfig) -> Self:
        """A new runner with `config` and the state in the folder `path`."""
        runner = cls(config)
        try:
            runner.restore_from_path(path)
        except BaseException:
            runner.stop()
            raise
        return runner


def _outline(connectors: dict[str, dict]) -> dict[str, list[str]]:
    return {module_id: sorted(states) for module_id, states in connectors.items()}


def _names(components: str | Collection[str]) -> set[str]:
    names = {components} if isinstance(components, str) else set(components)
    _check_names(names)
    return names


def _check_names(names: Collection[str]) -> None:
    unknown = set(names) - set(STATE_COMPONENTS)
    if unknown:
        raise ConfigError(f"unknown state components {sorted(unknown)}; known are {list(STATE_COMPONENTS)}")
