"""State of a runner, exchanged with other runners and checkpoint directories."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np

from fastmarl.core.checkpoint.folder import load_state, save_state
from fastmarl.core.connectors.env_to_module import CONNECTOR_OPTIONS
from fastmarl.core.envs.resumable import supports_checkpoint
from fastmarl.core.errors import CheckpointError, ConfigError, EnvWorkerError
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.core.errors.states import (
    check_keys,
    check_mapping,
    check_numpy_state,
    state_of_torch,
    torch_state_for,
    whole_number,
)
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.runner.loop.envs import Envs
from fastmarl.runner.loop.sampling import Sampling
from fastmarl.runner.state.running_episodes import EpisodesState, episodes_state, fits_checkpoint, no_episodes
from fastmarl.runner.state.saved_config import CONFIG, plain_config
from fastmarl.runner.state.saved_policy import SAVED, PolicyOptions, check_connectors, described
from fastmarl.runner.state.state_components import (
    ENV_STEPS,
    OF_MODULES,
    STATE_COMPONENTS,
    Names,
    chosen_components,
    known_parts,
    part_of,
)

PARTIAL = "is_partial"  # key in the file of a possibly partial state


class RunnerState:
    """Reads and writes the state of a runner, including its running episodes.

    Args:
        sampling: Object that runs the episodes and owns the runner resources.
        calls: Guard that knows whether a call is running.
    """

    def __init__(self, sampling: Sampling, calls: CallGuard):
        self._sampling = sampling
        self._resources = sampling.resources
        self._calls = calls

    @exits_as_errors()
    def get(
        self, components: Names = None, not_components: Names = None, *, inference_only: bool = False
    ) -> dict[str, Any]:
        """Implement `get_state()` of `MultiAgentEnvRunner`."""
        resources = self._resources
        chosen, modules = chosen_components(components, not_components, list(resources.module))
        resources.finish_weights()
        with_modules = OF_MODULES in chosen
        state = {
            OF_MODULES: resources.module.get_state(modules, inference_only=inference_only) if with_modules else None,
            "weights_seq_no": resources.weights_seq_no,
            **{option: side.get_state() for option, side in resources.env_to_module.sides().items()},
            ENV_STEPS: resources.counts.lifetime.env_steps,
            "lifetime_counters": resources.counts.get_state(),
            "num_resets": resources.seeds.get_state(),
            "random_state": {
                "torch": state_of_torch(resources.generator),
                "numpy": resources.rng.bit_generator.state,
            },
        }
        if with_modules:
            chosen.add("weights_seq_no")
        if "running_episodes" in chosen:
            state["running_episodes"] = self._running_episodes()
        return {name: value for name, value in state.items() if name in chosen}

    def check(self, state: dict[str, Any]) -> None:
        """Raise ConfigError if `set()` does not accept `state`; change nothing, but warn about unknown parts."""
        self._check(known_parts(state, self._resources.module))

    def _check(self, state: dict[str, Any]) -> None:
        """Check a state that has only known components."""
        check_mapping("the state of a runner", state)
        resources = self._resources
        checks: dict[str, Callable[[Any], Any]] = {
            "rl_module": resources.module.check_state,
            "weights_seq_no": partial(whole_number, "weights_seq_no"),
            **{option: side.check_state for option, side in resources.env_to_module.sides().items()},
            "num_env_steps_sampled_lifetime": partial(whole_number, "num_env_steps_sampled_lifetime"),
            "lifetime_counters": resources.counts.check_state,
            "num_resets": resources.seeds.check_state,
            "random_state": self._check_random_state,
            "running_episodes": self._checked_episodes,
        }
        for name, value in state.items():
            if name not in checks:
                raise ConfigError(f"unknown state component {name!r}; choose from {list(STATE_COMPONENTS)}")
            checks[name](value)

    @exits_as_errors()
    def set(self, state: dict[str, Any]) -> None:
        """Implement `set_state()` of `MultiAgentEnvRunner`."""
        resources = self._resources
        state = known_parts(state, resources.module)
        self._check(state)
        resources.finish_weights()
        seq_no = int(state.get("weights_seq_no", 0))
        if OF_MODULES in state and (seq_no == 0 or seq_no > resources.weights_seq_no):
            self._take_weights(state[OF_MODULES], seq_no or resources.weights_seq_no)
        self._take_others(state)

    @exits_as_errors()
    def save(self, path: str | os.PathLike, state: dict[str, Any] | None = None) -> None:
        """Implement `save_to_path()` of `MultiAgentEnvRunner`."""
        resources = self._resources
        if state is None:
            content = self.get()
        else:
            content = known_parts(state, resources.module)
            self._check(content)
            content[PARTIAL] = True
        if (running := content.get("running_episodes")) and not fits_checkpoint(running):
            content["running_episodes"] = {}  # the restored runner starts new ones
        options = PolicyOptions.of(resources.config, resources.counts.lifetime.env_steps)
        policies = described(options, resources.module, resources.env_to_module)
        save_state(path, {**content, SAVED: policies, CONFIG: plain_config(resources.wanted)})

    @exits_as_errors()
    def restore(self, path: str | os.PathLike, component: str | None = None) -> None:
        """Implement `restore_from_path()` of `MultiAgentEnvRunner`."""
        state = load_state(path)
        is_partial = component is not None
        policies = None
        if isinstance(state, dict):
            policies = state.pop(SAVED, None)
            state.pop(CONFIG, None)  # not part of the runner state
            state.setdefault(CONNECTOR_OPTIONS[1], {})  # missing in older checkpoints
            is_partial |= bool(state.pop(PARTIAL, False))
        try:
            if component is not None:
                state = part_of(state, component)
            if component is None or component in CONNECTOR_OPTIONS:
                check_connectors(policies, [*self._resources.module], self._resources.env_to_module)
            self._check_of_runner(state, is_partial)
            self._check(state)
        except ConfigError as error:
            raise CheckpointError(f"{path} is not a state of this runner: {error}") from error
        before = self.get()
        try:
            self._take_all(state)
        except BaseException as error:  # raised by set_state() of a module or connector, or an interrupt
            self._take_all(before)
            if not isinstance(error, Exception):
                raise
            raise CheckpointError(f"{path} could not be restored; the runner keeps its state: {error!r}") from error

    def _take_all(self, state: dict[str, Any]) -> None:
        if OF_MODULES in state:
            self._take_weights(state[OF_MODULES], int(state.get("weights_seq_no", self._resources.weights_seq_no)))
        self._take_others(state)

    def _take_weights(self, weights: dict[str, Any], seq_no: int) -> None:
        self._sampling.rollout.stamp_actions()
        self._resources.take_weights(weights, seq_no)

    def _take_others(self, state: dict[str, Any]) -> None:
        """Restore all components except weights."""
        resources = self._resources
        for option, side in resources.env_to_module.sides().items():
            if option in state:
                side.set_state(state[option])
        if "num_env_steps_sampled_lifetime" in state:
            resources.counts.lifetime.env_steps = int(state["num_env_steps_sampled_lifetime"])
        if "lifetime_counters" in state:
            resources.counts.set_state(state["lifetime_counters"])
        if "num_resets" in state:
            resources.seeds.set_state(state["num_resets"])
        if "random_state" in state:
            streams = state["random_state"]
            resources.generator.set_state(torch_state_for(resources.generator.device, streams["torch"]))
            resources.rng.bit_generator.state = streams["numpy"]
        if "running_episodes" in state:
            self._resume(state["running_episodes"])

    def _check_random_state(self, streams: Any) -> None:
        check_keys("random_state", streams, ("torch", "numpy"))
        torch_state_for(self._resources.generator.device, streams["torch"])
        check_numpy_state(self._resources.rng, streams["numpy"])

    def _check_of_runner(self, state: Any, is_partial: bool) -> None:
        """Raise ConfigError if a state is incomplete, or its modules or connectors differ from the runner's.

        Args:
            state: Content of a file.
            is_partial: True if components and modules may be missing.
        """
        if is_partial:
            return
        check_keys("it", state, STATE_COMPONENTS)
        modules = state[OF_MODULES]
        check_mapping("the state of modules", modules)
        saved, present = set(modules), set(self._resources.module)
        if saved != present:
            raise ConfigError(
                f"expected the modules {list(self._resources.module)}; unknown are "
                f"{sorted(saved - present, key=str)}, missing are {sorted(present - saved)}; call add_module() or "
                f"remove_module() first"
            )
        for option, side in self._resources.env_to_module.sides().items():
            in_file, here = _outline(state[option]), _outline(side.get_state())
            if in_file != here:
                raise ConfigError(f"expected a state of the connectors {here} of the runner, got {in_file}")

    # Running episodes.

    def _running_episodes(self) -> dict[str, Any]:
        """Return the running episodes, or an empty dict if they cannot be saved."""
        sampling, resources, rollout = self._sampling, self._resources, self._sampling.rollout
        if self._calls.running is not None:
            return {}
        running = [
            env_index
            for env_index, record in enumerate(rollout.table.records)
            if sampling.is_intact and record is not None and env_index not in rollout.to_reset
        ]
        known = [env_index for env_index, number in enumerate(resources.seeds.numbers) if number]
        states = states_of_envs(resources.envs, known) if sampling.is_intact else {}
        all_have_lanes = all(connectors.knows_lanes for connectors in resources.env_to_module.values())
        if running and not (states and all_have_lanes):
            return {}
        if not states:  # the next call starts all episodes
            return {"num_envs": resources.num_envs, "envs": {}, "turns": [], **no_episodes()}
        going_on = [
            env_index
            for env_index in running
            if not rollout.is_outdated(env_index) and (resources.envs.is_batch or env_index in states)
        ]
        episodes = deepcopy(episodes_state(rollout.log, rollout.policies, going_on))
        return {"num_envs": resources.num_envs, "envs": states, "turns": rollout.env.turns(), **episodes}

    def _checked_episodes(self, state: Any) -> EpisodesState | None:
        """Check and return running episodes; None if they were not saved or belong to other envs.

        Raises:
            ConfigError: If the episodes are damaged or do not match this runner.
        """
        check_mapping("the running episodes", state)
        if not state:
            return None
        check_keys("the running episodes", state, ("num_envs", "envs", "turns", "episodes", "agents", "modules"))
        if not isinstance(state["turns"], list):
            raise ConfigError(f"the turns of running episodes must be a list, got {state['turns']!r:.200}")
        for number in state["turns"]:
            whole_number("each of the turns of running episodes", number)
        envs, rollout = self._resources.envs, self._sampling.rollout
        saved, n_envs = whole_number("num_envs of running episodes", state["num_envs"]), self._resources.num_envs
        check_mapping("the states of envs", state["envs"])
        if state["envs"] or state["episodes"]:
            if saved > n_envs or (saved != n_envs and envs.is_batch):
                return None
            check_envs(envs, state["envs"])
        found = EpisodesState(state, rollout.log, rollout.policies, in_arrays=envs.is_batch)
        if not envs.is_batch and not set(found.env_indices) <= state["envs"].keys():
            raise ConfigError(f"expected states of all envs with running episodes, {found.env_indices}, got states of "
                              f"the envs {list(state['envs'])}")  # fmt: skip
        return found if found.fits_agents else None

    def _resume(self, state: dict[str, Any]) -> None:
        """Continue exactly these episodes, or keep the current ones if `state` has none that match the envs."""
        if self._checked_episodes(state) is None:
            return
        sampling, resources = self._sampling, self._resources
        has_begun = any(record is not None for record in sampling.rollout.table.records)
        if not (state["envs"] or state["episodes"] or has_begun):
            return
        sampling.is_intact = False  # until everything is done: after an interrupt, the next call rebuilds the rollout
        sampling.rebuild_rollout()
        copied = {name: value if name == "envs" else deepcopy(value) for name, value in state.items()}
        found = self._checked_episodes(copied)  # for the new rollout, where module indices may differ
        assert found is not None
        put_states_of_envs(resources.envs, state["envs"])
        rollout = sampling.rollout
        found.put(resources.config.policy_mapping_fn)
        rollout.env.resume(found.env_indices, state["turns"])
        rollout.to_reset.difference_update(found.env_indices)
        sampling.is_intact = True


def _outline(connectors: Any) -> dict[str, list[str]]:
    """Return module id -> names of its connectors."""
    check_mapping("the state of connectors", connectors)
    for module_id, each in connectors.items():
        check_mapping(f"the state of the connectors of {module_id!r}", each)
    return {module_id: sorted(map(str, states)) for module_id, states in connectors.items()}


def states_of_envs(envs: Envs, env_indices: Sequence[int]) -> dict[int, Any]:
    """Return env index -> state for envs that support checkpoints. The envs must have been reset.

    For array-based envs, the keys are batch indices, and the dict is empty unless all batches support checkpoints.
    """
    if envs.is_batch and not (env_indices and all(map(supports_checkpoint, envs.all))):
        return {}
    states = {}
    for index in range(len(envs.all)) if envs.is_batch else env_indices:
        try:
            if supports_checkpoint(envs.all[index]):
                states[index] = deepcopy(envs.all[index].get_state())
        except EnvWorkerError:
            continue  # the worker process has exited; the next step will report it
        except Exception as error:
            error.add_note(f"fastmarl: raised by get_state() of {_name_of_env(envs, index)}")
            raise
    return states


def check_envs(envs: Envs, states: Any) -> None:
    """Raise ConfigError if `put_states_of_envs()` does not accept these states."""
    n = len(envs.all)
    if not isinstance(states, dict) or not all(type(index) is int and 0 <= index < n for index in states):
        raise ConfigError(f"the states of envs must be a dict keyed by index, below {n}, got {states!r:.200}")
    if envs.is_batch and len(states) != n:
        raise ConfigError(f"expected states of all {n} batches of envs, got only {list(states)}")
    for index in states:
        if not supports_checkpoint(envs.all[index]):
            raise ConfigError(f"got a state for {_name_of_env(envs, index)}, but {envs.all[index]!r:.200} does not "
                              f"support checkpoints (supports_checkpoint)")  # fmt: skip


def put_states_of_envs(envs: Envs, states: dict[int, Any]) -> None:
    """Restore the envs from a result of `states_of_envs()`. Errors of the envs propagate."""
    for index, state in states.items():
        env = envs.all[index]
        try:
            if envs.is_batch:
                env.reset(np.arange(env.num_envs), env.new_arrays(), seeds=[0] * env.num_envs)
            else:
                env.reset(seed=0)
            env.set_state(deepcopy(state))
        except Exception as error:
            error.add_note(f"fastmarl: raised while restoring {_name_of_env(envs, index)} from a state")
            raise


def _name_of_env(envs: Envs, index: int) -> str:
    return f"batch {index}" if envs.is_batch else f"env {index}"
