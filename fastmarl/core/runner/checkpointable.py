"""A runner's state, weights and checkpoints. The methods are those of RLlib's class of the same name."""

import os
from collections.abc import Collection
from typing import Any

from fastmarl.core.checkpoint import STATE_FILE
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.core.runner.resources import Resources
from fastmarl.core.runner.state import Names, RunnerState
from fastmarl.core.version import __version__


class Checkpointable:
    """The part of `MultiAgentEnvRunner` that saves and restores."""

    _calls: CallGuard
    _resources: Resources
    _state: RunnerState

    def get_state(self, components: Names = None, *, not_components: Names = None) -> dict[str, Any]:
        """Return all that another runner needs to continue.

        These are weights, counters, random streams, and the running episodes of those envs that tell their
        own state (`supports_checkpoint`, see `fastmarl.MultiAgentEnv`).

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
        return self._state.get(components, not_components)

    def check_state(self, state: dict[str, Any]) -> None:
        """Raises ConfigError if `set_state()` can't take `state`; changes nothing."""
        self._state.check(state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take (parts of) what `get_state()` returned.

        Weights with a "weights_seq_no" above 0 are taken only if that is newer than the runner's own, as in RLlib; else
        the weights and their number stay as they are.

        Raises:
            ConfigError: something in it is not for this runner. Nothing was changed.
            RunnerBusyError: another call is under way. `set_weights()` is for callbacks, too.
        """
        self._calls.check("set_state()")
        self._state.set(state)

    def get_weights(self, modules: Collection[str] | None = None) -> dict[str, Any]:
        """Module id -> its weights, by parameter name, as arrays."""
        self._resources.finish_weights()
        wanted = [module_id for module_id in self._resources.module if modules is None or module_id in modules]
        return self._resources.module.get_state(wanted)

    def set_weights(self, weights: dict[str, Any], weights_seq_no: int = 0) -> None:
        """Take weights as `get_weights()` returns them; `weights_seq_no` is recorded with each action from now on."""
        self._state.set({"rl_module": weights, "weights_seq_no": weights_seq_no})

    def save_to_path(self, path: str | os.PathLike) -> str:
        """Write `get_state()` to a folder, and what `fastmarl.Policy.from_checkpoint()` needs; returns its path."""
        self._state.save(path)
        return str(path)

    def restore_from_path(self, path: str | os.PathLike) -> None:
        """Take the state from a folder that `save_to_path()` wrote, weights of whatever number included.

        Random streams go on where they were saved. If that was on another kind of device, the one of the modules'
        exploration goes on in a stream that follows from the saved one, the same for all who restore it.

        Raises:
            CheckpointError: the folder is missing, damaged, from a newer version, or of other modules or observations;
                the runner keeps its state.
        """
        self._state.restore(path)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Arguments with which this class makes a runner like this one."""
        return (), {"config": self._resources.config}

    def get_metadata(self) -> dict[str, str]:
        """Return what a checkpoint says of itself, in JSON: the version, and the name of its main file."""
        return {"fastmarl_version": __version__, "state_file": STATE_FILE}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Names of components of `get_state()` that have a `get_state()` and `set_state()` of their own, and these."""
        return [("rl_module", self._resources.module), ("env_to_module_connector", self._resources.env_to_module)]
