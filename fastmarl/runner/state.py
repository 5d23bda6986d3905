"""A runner's state, to and from other runners and folders."""

import os
from collections.abc import Callable, Collection
from copy import deepcopy
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from fastmarl.acting.policies import Policies
from fastmarl.checkpoint import load_state, save_state
from fastmarl.config import EnvRunnerConfig
from fastmarl.connectors.env_to_module import EnvToModule
from fastmarl.episodes.log import EpisodeLog
from fastmarl.errors import CheckpointError, ConfigError
from fastmarl.modules import MultiRLModule
from fastmarl.native._call_guard import CallGuard
from fastmarl.record.lanes import LaneTable
from fastmarl.runner.components import Names, chosen_components
from fastmarl.runner.env_checkpoints import check_envs, put_states_of_envs, states_of_envs
from fastmarl.runner.envs import Envs
from fastmarl.runner.metrics import RunnerMetrics
from fastmarl.runner.running_episodes import EpisodesState, episodes_state
from fastmarl.seeds import ResetSeeds
from fastmarl.states import (
    check_keys,
    check_mapping,
    check_numpy_state,
    state_of_torch,
    torch_state_for,
    whole_number,
)

STATE_COMPONENTS = (
    "rl_module",
    "weights_seq_no",
    "env_to_module_connector",
    "num_env_steps_sampled_lifetime",
    "lifetime_counters",
    "num_resets",
    "random_state",
    "running_episodes",
)


class RunnerState:
    """The methods of a runner that read and write its state."""

    module: MultiRLModule
    env_to_module: EnvToModule
    _calls: CallGuard
    _weights_seq_no: int
    _coming_weights: tuple[dict[str, Any], int] | None = None
    _counts: RunnerMetrics
    _generator: torch.Generator
    _rng: np.random.Generator
    _seeds: ResetSeeds
    config: EnvRunnerConfig
    env: Any
    _envs: Envs
    _is_whole: bool
    _policies: Policies
    _log: EpisodeLog
    _table: LaneTable
    _to_reset: set[int]

    def __init__(self, config: EnvRunnerConfig):
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def _stamp_actions(self) -> None:
        raise NotImplementedError

    def _begin_anew(self) -> None:
        raise NotImplementedError

    def get_state(self, components: Names = None, *, not_components: Names = None) -> dict[str, Any]:
        """What is needed to go on elsewhere: weights, counters, random streams, and the running episodes of those envs
        that tell their own state (`supports_checkpoint`, see `fastmarl.MultiAgentEnv`).

        A runner that takes it goes on with these episodes where they are, and begins others in its other envs. While
        `sample()` is under way, and after a call that has failed, there are none.

        Args:
            components: only these of "rl_module" (with "weights_seq_no"), "env_to_module_connector",
                "num_env_steps_sampled_lifetime", "lifetime_counters" (all others), "num_resets" (by env: seeds go by
                that), "random_state", "running_episodes"; "rl_module/p0" stands for one module's weights.
            not_components: all but these.

        Raises:
            ConfigError: there is no such component, or no such module.
        """
        chosen, modules = chosen_components(components, not_components, STATE_COMPONENTS, list(self.module))
        self._finish_weights()
        state = {
            "rl_module": self.module.get_state(modules) if "rl_module" in chosen else None,
            "weights_seq_no": self._weights_seq_no,
            "env_to_module_connector": self.env_to_module.get_state(),
            "num_env_steps_sampled_lifetime": self._counts.lifetime["num_env_steps_sampled"],
            "lifetime_counters": self._counts.get_state(),
            "num_resets": self._seeds.get_state(),
            "random_state": {
                "torch": state_of_torch(self._generator),
                "numpy": self._rng.bit_generator.state,
            },
        }
        if "rl_module" in chosen:
            chosen.add("weights_seq_no")
        if "running_episodes" in chosen:
            state["running_episodes"] = self._running_episodes()
        return {name: value for name, value in state.items() if name in chosen}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raises ConfigError if `state` is none for `set_state()`; changes nothing."""
        check_mapping("a runner's state", state)
        _check_names(state)
        checks: dict[str, Callable[[Any], Any]] = {
            "rl_module": self.module.check_state,
            "weights_seq_no": partial(whole_number, "weights_seq_no"),
            "env_to_module_connector": self.env_to_module.check_state,
            "num_env_steps_sampled_lifetime": partial(whole_number, "num_env_steps_sampled_lifetime"),
            "lifetime_counters": self._counts.check_state,
            "num_resets": self._seeds.check_state,
            "random_state": self._check_random_state,
            "running_episodes": self._checked_episodes,
        }
        for name, part in state.items():
            checks[name](part)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take (parts of) what `get_state()` returned.

        Weights with a "weights_seq_no" above 0 are taken only if that is newer than the runner's own, as in RLlib; else
        the weights and their number stay as they are.

        Raises:
            ConfigError: something in it is not for this runner. Nothing was changed.
            RunnerBusyError: another call is under way. `set_weights()` is for callbacks, too.
        """
        self._calls.check("set_state()")
        self._set_state(state)

    def _set_state(self, state: dict[str, Any]) -> None:
        self.check_state(state)
        self._finish_weights()
        seq_no = int(state.get("weights_seq_no", 0))
        if "rl_module" in state and (seq_no == 0 or seq_no > self._weights_seq_no):
            self._take_weights(state["rl_module"], seq_no or self._weights_seq_no)
        self._take_others(state)

    def _take_weights(self, weights: dict[str, Any], seq_no: int) -> None:
        self._stamp_actions()
        self._coming_weights = weights, seq_no
        self._finish_weights()

    def _finish_weights(self) -> None:
        """Take those weights that are coming: if that was interrupted, the next call of any kind takes them whole."""
        if self._coming_weights is None:
            return
        weights, seq_no = self._coming_weights
        try:
            self.module.set_state({module_id: weights[module_id] for module_id in weights if module_id in self.module})
        except Exception:  # of a module's own set_state()
            self._coming_weights = None
            raise
        self._weights_seq_no = seq_no
        self._coming_weights = None

    def _take_others(self, state: dict[str, Any]) -> None:
        """All but the weights."""
        if "env_to_module_connector" in state:
            self.env_to_module.set_state(state["env_to_module_connector"])
        if "num_env_steps_sampled_lifetime" in state:
            self._counts.lifetime["num_env_steps_sampled"] = int(state["num_env_steps_sampled_lifetime"])
        if "lifetime_counters" in state:
            self._counts.set_state(state["lifetime_counters"])
        if "num_resets" in state:
            self._seeds.set_state(state["num_resets"])
        if "random_state" in state:
            streams = state["random_state"]
            self._generator.set_state(torch_state_for(self._generator.device, streams["torch"]))
            self._rng.bit_generator.state = streams["numpy"]
        if "running_episodes" in state:
            self._resume(state["running_episodes"])

    def _running_episodes(self) -> dict[str, Any]:
        tells = all(connectors.tells_lanes for connectors in self.env_to_module.values())
        if self._calls.running is not None or not self._is_whole or not tells:
            return {}
        known = [env_index for env_index, number in enumerate(self._seeds.numbers) if number]
        states = states_of_envs(self._envs, known)
        if not states:
            return {}
        outdated = partial(self._policies.is_outdated, mapping_fn=self.config.policy_mapping_fn)
        running = [
            env_index
            for env_index, record in enumerate(self._table.records)
            if record is not None and env_index not in self._to_reset and not outdated(env_index)
            if self._envs.is_batch or env_index in states
        ]
        episodes = deepcopy(episodes_state(self._log, self._policies, running))
        return {"num_envs": len(self._seeds), "envs": states, "turns": self.env.turns(), **episodes}

    def _checked_episodes(self, state: Any) -> EpisodesState | None:
        """None if there are none for this runner's envs.

        Raises:
            ConfigError: they don't fit these, or are damaged.
        """
        check_mapping("the running episodes", state)
        if not state:
            return None
        check_keys("the running episodes", state, ("num_envs", "envs", "turns", "episodes", "agents", "modules"))
        if not isinstance(state["turns"], list):
            raise ConfigError(f"the turns of running episodes must be a list, got {state['turns']!r:.200}")
        for number in state["turns"]:
            whole_number("the number of a part of the envs", number)
        saved, own = whole_number("num_envs of running episodes", state["num_envs"]), len(self._seeds)
        if saved > own or (saved != own and self._envs.is_batch):
            return None
        check_envs(self._envs, state["envs"])
        episodes = {name: state[name] for name in ("episodes", "agents", "modules")}
        found = EpisodesState(episodes, self._log, self._policies, in_arrays=self._envs.is_batch)
        if not self._envs.is_batch and not set(found.env_indices) <= state["envs"].keys():
            raise ConfigError(f"there are running episodes of the envs {found.env_indices}, but states of the envs "
                              f"{list(state['envs'])} alone")  # fmt: skip
        return found

    def _resume(self, state: dict[str, Any]) -> None:
        """Go on with these episodes; with no others, if there are any states of envs."""
        if self._checked_episodes(state) is None:
            return
        self._is_whole = False  # unless this comes to its end, the next call begins anew
        self._begin_anew()
        own = {name: part if name == "envs" else deepcopy(part) for name, part in state.items()}
        found = self._checked_episodes(own)  # with the new parts: modules may have other numbers there
        assert found is not None
        put_states_of_envs(self._envs, state["envs"])
        found.put(self._log, self._policies, self.config.policy_mapping_fn)
        self.env.resume(found.env_indices, state["turns"])
        self._to_reset.difference_update(found.env_indices)
        self._is_whole = True

    def _check_random_state(self, streams: Any) -> None:
        check_keys("random_state", streams, ("torch", "numpy"))
        torch_state_for(self._generator.device, streams["torch"])
        check_numpy_state(self._rng, streams["numpy"])

    def get_weights(self, modules: Collection[str] | None = None) -> dict[str, Any]:
        """Module id -> its weights, by parameter name, as arrays."""
        self._finish_weights()
        return {
            module_id: weights
            for module_id, weights in self.module.get_state().items()
            if modules is None or module_id in modules
        }

    def set_weights(self, weights: dict[str, Any], weights_seq_no: int = 0) -> None:
        """Take weights as `get_weights()` returns them; `weights_seq_no` is recorded with each action from now on."""
        self._set_state({"rl_module": weights, "weights_seq_no": weights_seq_no})

    def save_to_path(self, path: str | os.PathLike) -> str:
        """Write `get_state()` to a folder; returns its path."""
        save_state(path, self.get_state())
        return str(path)

    def restore_from_path(self, path: str | os.PathLike) -> None:
        """Take the state from a folder that `save_to_path()` wrote, weights of whatever number included.

        Random streams go on where they were saved. If that was on another kind of device, the one of the modules'
        exploration goes on in a stream that follows from the saved one, the same for all who restore it.

        Raises:
            CheckpointError: the folder is missing, damaged, from a newer version, or of other modules or observations;
                the runner keeps its state.
        """
        state = load_state(path)
        try:
            self._check_all_of_runner(state)
            self.check_state(state)
        except ConfigError as error:
            raise CheckpointError(f"{path} is no state of this runner: {error}") from error
        before = self.get_state()
        try:
            self._take_all(state)
        except BaseException as error:  # of a module's or connector's own set_state(), or an interrupt
            self._take_all(before)
            if not isinstance(error, Exception):
                raise
            raise CheckpointError(f"{path} could not be taken, and the runner keeps its state: {error!r}") from error

    def _take_all(self, state: dict[str, Any]) -> None:
        self._take_weights(state["rl_module"], int(state["weights_seq_no"]))
        self._take_others(state)

    def _check_all_of_runner(self, state: Any) -> None:
        """Raises ConfigError if `state` is not a whole one, or has other modules or connectors than the runner."""
        check_keys("it", state, STATE_COMPONENTS)
        modules, connectors = state["rl_module"], state["env_to_module_connector"]
        check_mapping("the state of modules", modules)
        saved, own = set(modules), set(self.module)
        if saved != own:
            raise ConfigError(
                f"the runner has the modules {list(self.module)}; it also has {sorted(saved - own, key=str)}, and "
                f"{sorted(own - saved)} are missing; add_module() and remove_module() first"
            )
        in_file, here = _outline(connectors), _outline(self.env_to_module.get_state())
        if in_file != here:
            raise ConfigError(f"it has a state of the connectors {in_file}, but the runner has {here}")

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


def _outline(connectors: Any) -> dict[str, list[str]]:
    """Module id -> names of its connectors."""
    check_mapping("the state of connectors", connectors)
    for module_id, each in connectors.items():
        check_mapping(f"the state of the connectors of {module_id!r}", each)
    return {module_id: sorted(map(str, states)) for module_id, states in connectors.items()}


def _check_names(names: Collection[str]) -> None:
    unknown = [name for name in names if name not in STATE_COMPONENTS]
    if unknown:
        raise ConfigError(f"unknown state components {unknown}; known are {list(STATE_COMPONENTS)}")
