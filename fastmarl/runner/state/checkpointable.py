"""A runner's state, weights and checkpoints, with the methods of RLlib's `Checkpointable`."""

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from fastmarl.core import __version__
from fastmarl.core.checkpoint.folder import STATE_FILE, load_state
from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.errors import CheckpointError, ConfigError
from fastmarl.core.native._call_guard import CallGuard
from fastmarl.runner.loop.resources import Resources
from fastmarl.runner.state.saved_config import CONFIG, config_from
from fastmarl.runner.state.state import RunnerState
from fastmarl.runner.state.state_components import Names


class Checkpointable:
    """Methods of `MultiAgentEnvRunner` that save and restore its state."""

    _calls: CallGuard
    _resources: Resources
    _state: RunnerState

    def get_state(
        self, components: Names = None, *, not_components: Names = None, inference_only: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the state that another runner needs to continue.

        It has weights, counters, random streams, and the running episodes of those envs that can save their own state
        (`supports_checkpoint`, see `fastmarl.MultiAgentEnv`).

        A runner that takes the state continues these episodes, and begins new ones in its other envs; also in all of
        them if there are none, as before the first call. While `sample()` is under way, and where envs or connectors
        can't save their state, "running_episodes" is {}: a runner that takes this continues its own.

        Args:
            components: Components to include; None: all. They are "rl_module" (with "weights_seq_no"),
                "env_to_module_connector", "lifetime_counters", "num_resets" (of each env, as seeds depend on it),
                "random_state", "running_episodes", and "module_to_env_connector", which is empty; "rl_module/p0"
                stands for one module's weights. "num_env_steps_sampled_lifetime" is always included, as explorations
                with a schedule depend on it. Unknown names raise a warning.
            not_components: Components to leave out.
            inference_only: Leave out weights that a module does not need to act, as its
                `get_non_inference_attributes()` says.
            kwargs: Ignored, as in RLlib.

        Returns:
            The state, by component.
        """
        return self._state.get(components, not_components, inference_only=inference_only)

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ConfigError if `set_state()` can't take `state`; change nothing."""
        self._state.check(state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take a state of `get_state()`, or parts of it.

        Weights with a "weights_seq_no" above 0 are taken only if that is newer than the runner's own, as in RLlib;
        otherwise the weights and their number stay as they are. Components and modules that the runner does not have
        are left out with a warning; a reference to weights in Ray's store is resolved.

        Raises:
            ConfigError: If a part does not fit this runner. Nothing was changed.
            RunnerBusyError: If another call is under way. Callbacks can use `set_weights()`.
        """
        self._calls.check("set_state()")
        self._state.set(state)

    def get_weights(self, modules: Collection[str] | None = None) -> dict[str, Any]:
        """Return weights as arrays, by module id and parameter name.

        Args:
            modules: Ids of the modules; None: all.
        """
        self._resources.finish_weights()
        chosen = [modules] if isinstance(modules, str) else modules
        wanted = [module_id for module_id in self._resources.module if chosen is None or module_id in chosen]
        return self._resources.module.get_state(wanted)

    def set_weights(self, weights: dict[str, Any], global_vars: None = None, weights_seq_no: int = 0) -> None:
        """Take weights as `get_weights()` returns them.

        Args:
            weights: Weights by module id; those of unknown modules are left out with a warning.
            global_vars: Must be None; RLlib's old stack used it.
            weights_seq_no: Number that is recorded with each action from now on. Above 0: the weights are taken only
                if it is newer than the runner's own.

        Raises:
            ConfigError: If the weights do not fit the modules, or `global_vars` is not None. Nothing was changed.
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
        """Write a checkpoint for `restore_from_path()`, `from_checkpoint()` and `fastmarl.Policy.from_checkpoint()`.

        Args:
            path: Folder to write to; None: a new folder among the system's temporary files.
            state: A state of `get_state()`, or parts of it; None: the current state.
            filesystem: The `pyarrow.fs.FileSystem` of `path`; None: this machine's.
            use_msgpack: Ignored: a checkpoint consists of JSON and safetensors.

        Returns:
            The folder's path.

        Raises:
            CheckpointError: If the state has a value that a checkpoint can't hold.
            ConfigError: If `state` does not fit this runner, or `filesystem` is not one of pyarrow.
        """
        place = tempfile.mkdtemp(prefix="fastmarl-") if path is None else path
        with written_to(place, filesystem) as folder:
            self._state.save(folder, state)
        return str(place)

    def restore_from_path(
        self, path: str | os.PathLike, *, component: str | None = None, filesystem: Any = None, **kwargs: Any
    ) -> None:
        """Take the state from a folder that `save_to_path()` wrote, whatever the number of its weights.

        Random streams continue where they were saved. If that was on another kind of device, the stream of the modules'
        exploration continues with a stream derived from the saved one, which is the same for every runner that restores
        it.

        Args:
            path: The checkpoint's folder; for a component also its path in RLlib's layout, `path / "rl_module"`.
            component: Part to restore, such as "rl_module" or "rl_module/p0"; None: all.
            filesystem: See `save_to_path()`; `path` must then be the checkpoint's folder.
            kwargs: Ignored, as in RLlib.

        Raises:
            CheckpointError: If the folder is missing, damaged or from a newer version, lacks the component, or fits
                other modules or observations. The runner keeps its state.
            ConfigError: If `filesystem` is not one of pyarrow.
        """
        with read_from(path, filesystem) as folder:
            self._state.restore(_folder_of(folder, component), component)

    @classmethod
    def from_checkpoint(
        cls, path: str | os.PathLike, config: EnvRunnerConfig | None = None, *, filesystem: Any = None, **options: Any
    ) -> Self:
        """Make a runner with the state in a folder that `save_to_path()` wrote.

        Args:
            path: The checkpoint's folder.
            config: Config of the new runner; None: the saved one. A checkpoint holds plain data only, so an env without
                a name, functions, classes and folders to write to must be given as `options`.
            filesystem: See `save_to_path()`.
            options: Options of the config that replace the saved ones.

        Raises:
            CheckpointError: If the folder has no config, or no state that such a runner can take; the message names the
                options that must be given.
            ConfigError: If both a config and options are given, or `filesystem` is not one of pyarrow.
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
        """Return the arguments that make a runner like this one."""
        return (), {"config": self._resources.wanted}

    def get_metadata(self) -> dict[str, str]:
        """Return the version and the name of the main file, which a checkpoint stores as JSON."""
        return {"fastmarl_version": __version__, "state_file": STATE_FILE}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Return (name, object) of the components that have a `get_state()` and `set_state()` of their own."""
        return [("rl_module", self._resources.module), *self._resources.env_to_module.sides().items()]


def saved_config(path: str | os.PathLike, options: dict[str, Any]) -> EnvRunnerConfig:
    """Load the config of a checkpoint, with `options` in place of saved ones.

    Raises:
        CheckpointError: If the checkpoint has no config, or the config needs more options.
    """
    state = load_state(path)
    if not isinstance(state, dict) or CONFIG not in state:
        raise CheckpointError(f"{path} holds no config of a runner; give one: from_checkpoint(path, config)")
    try:
        return config_from(state[CONFIG], options)
    except ConfigError as error:
        raise CheckpointError(f"no config can be made from {path}: {error}") from error


def _folder_of(path: str | os.PathLike, component: str | None) -> Path:
    """Return the runner's folder. In RLlib `path` is the component's own folder, which does not exist here."""
    folder, names = Path(path), Path(component or "").parts
    is_of_component = names and folder.parts[-len(names) :] == names and not folder.exists()
    return folder.parents[len(names) - 1] if is_of_component else folder


@contextmanager
def written_to(path: str | os.PathLike[str], filesystem: Any) -> Iterator[str | os.PathLike[str]]:
    """Yield a folder to write to, and copy it to `path` on the file system at the end; None: yield `path` itself.

    Raises:
        ConfigError: If `filesystem` is not one of pyarrow.
    """
    if filesystem is None:
        yield path
        return
    copy_files = _copy_files(filesystem)
    with tempfile.TemporaryDirectory(prefix="fastmarl-") as folder:
        yield folder
        filesystem.create_dir(os.fspath(path))
        copy_files(folder, os.fspath(path), destination_filesystem=filesystem)


@contextmanager
def read_from(path: str | os.PathLike[str], filesystem: Any) -> Iterator[str | os.PathLike[str]]:
    """Yield a folder with a copy of `path` on the file system; None: yield `path` itself.

    Raises:
        CheckpointError: If `path` does not exist.
        ConfigError: If `filesystem` is not one of pyarrow.
    """
    if filesystem is None:
        yield path
        return
    copy_files = _copy_files(filesystem)
    with tempfile.TemporaryDirectory(prefix="fastmarl-") as folder:
        try:
            copy_files(os.fspath(path), folder, source_filesystem=filesystem)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} does not exist on {type(filesystem).__name__}") from error
        yield folder


def _copy_files(filesystem: Any) -> Any:
    """Return pyarrow's function after checking `filesystem`. Without pyarrow it can't be a valid one."""
    try:
        fs: Any = import_module("pyarrow.fs")
    except ImportError:
        fs = None
    if fs is None or not isinstance(filesystem, fs.FileSystem):
        raise ConfigError(f"filesystem must be None or a pyarrow.fs.FileSystem, got {filesystem!r:.200}")
    return fs.copy_files
