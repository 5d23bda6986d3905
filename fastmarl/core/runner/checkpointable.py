"""A runner's state, weights and checkpoints. The methods are those of RLlib's class of the same name."""

import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

from fastmarl.core.checkpoint import STATE_FILE, load_state
from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.errors import CheckpointError, ConfigError
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.core.runner.filesystems import read_from, written_to
from fastmarl.core.runner.resources import Resources
from fastmarl.core.runner.saved_config import CONFIG, config_from
from fastmarl.core.runner.state import RunnerState
from fastmarl.core.runner.state_components import Names
from fastmarl.core.version import __version__


class Checkpointable:
    """The part of `MultiAgentEnvRunner` that saves and restores."""

    _calls: CallGuard
    _resources: Resources
    _state: RunnerState

    def get_state(
        self, components: Names = None, *, not_components: Names = None, inference_only: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Return all that another runner needs to continue.

        These are weights, counters, random streams, and the running episodes of those envs that tell their
        own state (`supports_checkpoint`, see `fastmarl.MultiAgentEnv`).

        A runner that takes it goes on with these episodes where they are, and begins others in its other envs. While
        `sample()` is under way, and after a call that has failed, there are none.

        Args:
            components: only these of "rl_module" (with "weights_seq_no"), "env_to_module_connector",
                "lifetime_counters", "num_resets" (by env: seeds go by that), "random_state", "running_episodes", and
                "module_to_env_connector", which is empty; "rl_module/p0" stands for one module's weights.
                "num_env_steps_sampled_lifetime" comes with each of them: explorations with a schedule go by it.
                Names of nothing are a warning.
            not_components: all but these.
            inference_only: leave out weights that a module does not need to act, as its
                `get_non_inference_attributes()` says.
            kwargs: are ignored, as by RLlib.
        """
        return self._state.get(components, not_components, inference_only=inference_only)

    def check_state(self, state: dict[str, Any]) -> None:
        """Raises ConfigError if `set_state()` can't take `state`; changes nothing."""
        self._state.check(state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take (parts of) what `get_state()` returned.

        Weights with a "weights_seq_no" above 0 are taken only if that is newer than the runner's own, as in RLlib; else
        the weights and their number stay as they are. Components and modules that the runner does not have are left out
        with a warning; a reference to weights in Ray's store is resolved.

        Raises:
            ConfigError: something in it is not for this runner. Nothing was changed.
            RunnerBusyError: another call is under way. `set_weights()` is for callbacks, too.
        """
        self._calls.check("set_state()")
        self._state.set(state)

    def get_weights(self, modules: Collection[str] | None = None) -> dict[str, Any]:
        """Module id -> its weights, by parameter name, as arrays; of these modules, or all."""
        self._resources.finish_weights()
        chosen = [modules] if isinstance(modules, str) else modules
        wanted = [module_id for module_id in self._resources.module if chosen is None or module_id in chosen]
        return self._resources.module.get_state(wanted)

    def set_weights(self, weights: dict[str, Any], global_vars: None = None, weights_seq_no: int = 0) -> None:
        """Take weights as `get_weights()` returns them.

        Args:
            weights: module id -> weights; those of modules that are not here are left out with a warning.
            global_vars: None; RLlib's old stack had a use for it.
            weights_seq_no: is recorded with each action from now on. Above 0: the weights are taken only if it is newer
                than the runner's own.

        Raises:
            ConfigError: something does not fit the modules, or `global_vars` is not None. Nothing was changed.
        """
        if global_vars is not None:
            raise ConfigError(f"global_vars must be None, got {global_vars!r:.200}; give the number of the weights as "
                              f"set_weights(weights, weights_seq_no=...)")  # fmt: skip
        self._state.set({"rl_module": weights, "weights_seq_no": weights_seq_no})

    def save_to_path(
        self,
        path: str | os.PathLike | None = None,
        *,
        state: dict[str, Any] | None = None,
        filesystem: Any = None,
        use_msgpack: bool = False,
    ) -> str:
        """Write a state to a folder, and what `from_checkpoint()` and `fastmarl.Policy.from_checkpoint()` need.

        Args:
            path: the folder. None: one with a name of its own among the system's temporary files.
            state: (parts of) what `get_state()` returned. None: its state of now.
            filesystem: a `pyarrow.fs.FileSystem` that `path` is on. None: this machine's.
            use_msgpack: is ignored: a checkpoint is of JSON and safetensors.

        Returns:
            The folder's path.

        Raises:
            CheckpointError: a value that no checkpoint can hold.
            ConfigError: `state` is none of this runner, or `filesystem` is none of pyarrow.
        """
        place = tempfile.mkdtemp(prefix="fastmarl-") if path is None else path
        with written_to(place, filesystem) as folder:
            self._state.save(folder, state)
        return str(place)

    def restore_from_path(
        self, path: str | os.PathLike, *, component: str | None = None, filesystem: Any = None, **kwargs: Any
    ) -> None:
        """Take the state from a folder that `save_to_path()` wrote, weights of whatever number included.

        Random streams go on where they were saved. If that was on another kind of device, the one of the modules'
        exploration goes on in a stream that follows from the saved one, the same for all who restore it.

        Args:
            path: the folder of the whole runner; with a component, its place in there will do as well, as in RLlib:
                `path / "rl_module"`.
            component: only this part of it, such as "rl_module" or "rl_module/p0". None: all.
            filesystem: see `save_to_path()`; then `path` is the folder of the whole runner.
            kwargs: are ignored, as by RLlib.

        Raises:
            CheckpointError: the folder is missing, damaged, from a newer version, or of other modules or observations,
                or lacks the component; the runner keeps its state.
            ConfigError: `filesystem` is none of pyarrow.
        """
        with read_from(path, filesystem) as folder:
            self._state.restore(_folder_of(folder, component), component)

    @classmethod
    def from_checkpoint(
        cls, path: str | os.PathLike, config: EnvRunnerConfig | None = None, *, filesystem: Any = None, **options: Any
    ) -> Self:
        """A new runner with the state in a folder that `save_to_path()` wrote.

        Args:
            path: the folder.
            config: of the new runner. None: as it was saved. A checkpoint holds plain data only, so an env that has no
                name, functions, classes and folders to write to must be given again, as `options`.
            filesystem: see `save_to_path()`.
            options: of the config, in place of those that were saved.

        Raises:
            CheckpointError: the folder holds no state that such a runner can take, or no config; the message names the
                options that must be given.
            ConfigError: there are both a config and options, or `filesystem` is none of pyarrow.
        """
        if config is not None and options:
            raise ConfigError(f"give a config or the options {list(options)}, not both")
        with read_from(path, filesystem) as folder:
            runner = cls(saved_config(folder, options) if config is None else config)  # type: ignore[call-arg]
            try:
                runner.restore_from_path(folder)
            except BaseException:
                runner.stop()  # type: ignore[attr-defined]
                raise
        return runner

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Arguments with which this class makes a runner like this one."""
        return (), {"config": self._resources.wanted}

    def get_metadata(self) -> dict[str, str]:
        """Return what a checkpoint says of itself, in JSON: the version, and the name of its main file."""
        return {"fastmarl_version": __version__, "state_file": STATE_FILE}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Names of components of `get_state()` that have a `get_state()` and `set_state()` of their own, and these."""
        return [("rl_module", self._resources.module), *self._resources.env_to_module.sides().items()]


def saved_config(path: str | os.PathLike, options: dict[str, Any]) -> EnvRunnerConfig:
    """The config in a checkpoint, with other options.

    Raises:
        CheckpointError: there is none, or it needs more options.
    """
    state = load_state(path)
    if not isinstance(state, dict) or CONFIG not in state:
        raise CheckpointError(f"{path} holds no config of a runner; give one: from_checkpoint(path, config)")
    try:
        return config_from(state[CONFIG], options)
    except ConfigError as error:
        raise CheckpointError(f"no config can be made from {path}: {error}") from error


def _folder_of(path: str | os.PathLike, component: str | None) -> Path:
    """The runner's folder. RLlib's `path` is that of the component, which has no folder of its own here."""
    folder, names = Path(path), Path(component or "").parts
    is_of_component = names and folder.parts[-len(names) :] == names and not folder.exists()
    return folder.parents[len(names) - 1] if is_of_component else folder
