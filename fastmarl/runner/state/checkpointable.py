"""State, weights and checkpoints of a runner, with the methods of `Checkpointable` in RLlib."""

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
    """Methods of `MultiAgentEnvRunner` for saving and restoring its state."""

    _calls: CallGuard
    _resources: Resources
    _state: RunnerState

    def get_state(
        self, components: Names = None, *, not_components: Names = None, inference_only: bool = False, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the state from which another runner can continue.

        It contains weights, counters, random streams, and the running episodes of envs that can save their state
        (`supports_checkpoint`, see `fastmarl.MultiAgentEnv`).

        A runner that restores the state continues these episodes and starts new ones in its other envs, or in all envs
        if no episode is running, as before the first call. While `sample()` is running, or if envs or connectors cannot
        save their state, "running_episodes" is {}; a runner that restores this continues its current episodes.

        Args:
            components: Components to include; None for all. They are "rl_module" (with "weights_seq_no"),
                "env_to_module_connector", "module_to_env_connector", "lifetime_counters", "num_resets" (per env, as
                seeds depend on it), "random_state" and "running_episodes"; "rl_module/p0" selects the weights of a
                single module. "num_env_steps_sampled_lifetime" is always included, as exploration schedules depend on
                it. Unknown names cause a warning.
            not_components: Components to leave out.
            inference_only: Leave out weights not needed for acting, which each module names in
                `get_non_inference_attributes()`.
            kwargs: Ignored, as in RLlib.

        Returns:
            Dict of component -> state.
        """
        return self._state.get(components, not_components, inference_only=inference_only)

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ConfigError if `set_state()` does not accept `state`; change nothing."""
        self._state.check(state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `get_state()`, or parts of it.

        As in RLlib, weights with a "weights_seq_no" above 0 are loaded only if this number is higher than the current
        one; otherwise the weights and their number are unchanged. Unknown components and modules are skipped with a
        warning; references to weights in the Ray object store are resolved.

        Raises:
            ConfigError: If a part does not match this runner. Nothing is changed.
            RunnerBusyError: If another call is running. Callbacks can use `set_weights()`.
        """
        self._calls.check("set_state()")
        self._state.set(state)

    def get_weights(self, modules: Collection[str] | None = None) -> dict[str, Any]:
        """Return weights as arrays, keyed by module id and parameter name.

        Args:
            modules: Ids of the modules; None for all.
        """
        self._resources.finish_weights()
        chosen = [modules] if isinstance(modules, str) else modules
        wanted = [module_id for module_id in self._resources.module if chosen is None or module_id in chosen]
        return self._resources.module.get_state(wanted)

    def set_weights(self, weights: dict[str, Any], global_vars: None = None, weights_seq_no: int = 0) -> None:
        """Set weights in the format of `get_weights()`.

        Args:
            weights: Module id -> weights; unknown modules are skipped with a warning.
            global_vars: Must be None; an argument of the old RLlib stack.
            weights_seq_no: Sequence number to record with each subsequent action. If it is above 0, the weights are
                loaded only if it is higher than the current one.

        Raises:
            ConfigError: If the weights do not match the modules, or `global_vars` is not None. Nothing is changed.
        """
        if global_vars is not None:
            raise ConfigError(f"global_vars must be None, got {global_vars!r:.200}; pass the sequence number as "
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
            path: Directory to write to; None for a new temporary directory.
            state: A state returned by `get_state()`, or parts of it; None for the current state.
            filesystem: The `pyarrow.fs.FileSystem` of `path`; None for the local one.
            use_msgpack: Ignored; checkpoints consist of JSON and safetensors files.

        Returns:
            The path of the directory.

        Raises:
            CheckpointError: If the state contains a value that a checkpoint cannot store.
            ConfigError: If `state` does not match this runner, or `filesystem` is not a pyarrow file system.
        """
        place = tempfile.mkdtemp(prefix="fastmarl-") if path is None else path
        with written_to(place, filesystem) as folder:
            self._state.save(folder, state)
        return str(place)

    def restore_from_path(
        self, path: str | os.PathLike, *, component: str | None = None, filesystem: Any = None, **kwargs: Any
    ) -> None:
        """Restore the state from a directory written by `save_to_path()`, regardless of its weights sequence number.

        Random streams continue where they were saved. On a different kind of device, module exploration instead uses a
        stream derived from the saved one, the same for every runner that restores it.

        Args:
            path: The checkpoint directory; for a component, also its path in the RLlib layout, `path / "rl_module"`.
            component: Part to restore, such as "rl_module" or "rl_module/p0"; None for all.
            filesystem: See `save_to_path()`; `path` must then be the checkpoint directory.
            kwargs: Ignored, as in RLlib.

        Raises:
            CheckpointError: If the directory is missing, damaged or from a newer version, lacks the component, or
                belongs to different modules or observations. The runner keeps its state.
            ConfigError: If `filesystem` is not a pyarrow file system.
        """
        with read_from(path, filesystem) as folder:
            self._state.restore(_folder_of(folder, component), component)

    @classmethod
    def from_checkpoint(
        cls, path: str | os.PathLike, config: EnvRunnerConfig | None = None, *, filesystem: Any = None, **options: Any
    ) -> Self:
        """Create a runner from a directory written by `save_to_path()`.

        Args:
            path: The checkpoint directory.
            config: Config of the new runner; None for the saved one. A checkpoint contains only plain data, so
                functions, classes, output directories, and an env without a name must be passed as `options`.
            filesystem: See `save_to_path()`.
            options: Options of the config that replace the saved ones.

        Raises:
            CheckpointError: If the directory has no config, or its state does not match such a runner; the message
                names the missing options.
            ConfigError: If both a config and options are given, or `filesystem` is not a pyarrow file system.
        """
        if config is not None and options:
            raise ConfigError(f"pass a config or the options {list(options)}, not both")
        with read_from(path, filesystem) as folder:
            runner = cls(saved_config(folder, options) if config is None else config)  # type: ignore[call-arg]
            try:
                runner.restore_from_path(folder)
            except BaseException:
                runner.stop()  # type: ignore[attr-defined]
                raise
        return runner

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Return the constructor arguments for an equivalent runner."""
        return (), {"config": self._resources.wanted}

    def get_metadata(self) -> dict[str, str]:
        """Return the fastmarl version and the name of the main checkpoint file, for the JSON metadata."""
        return {"fastmarl_version": __version__, "state_file": STATE_FILE}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Return (name, object) of the components that have their own `get_state()` and `set_state()`."""
        return [("rl_module", self._resources.module), *self._resources.env_to_module.sides().items()]


def saved_config(path: str | os.PathLike, options: dict[str, Any]) -> EnvRunnerConfig:
    """Load the config of a checkpoint; `options` replace saved ones.

    Raises:
        CheckpointError: If the checkpoint has no config, or the config needs more options.
    """
    state = load_state(path)
    if not isinstance(state, dict) or CONFIG not in state:
        raise CheckpointError(f"{path} contains no runner config; pass one: from_checkpoint(path, config)")
    try:
        return config_from(state[CONFIG], options)
    except ConfigError as error:
        raise CheckpointError(f"the config saved in {path} cannot be restored: {error}") from error


def _folder_of(path: str | os.PathLike, component: str | None) -> Path:
    """Return the runner directory; `path` may name a component directory, which exists only in the RLlib layout."""
    folder, names = Path(path), Path(component or "").parts
    is_of_component = names and folder.parts[-len(names) :] == names and not folder.exists()
    return folder.parents[len(names) - 1] if is_of_component else folder


@contextmanager
def written_to(path: str | os.PathLike[str], filesystem: Any) -> Iterator[str | os.PathLike[str]]:
    """Yield a temporary directory and copy it to `path` on the file system on exit; without one, yield `path`.

    Raises:
        ConfigError: If `filesystem` is not a pyarrow file system.
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
    """Yield a temporary copy of the directory `path` on the file system; without one, yield `path`.

    Raises:
        CheckpointError: If `path` does not exist.
        ConfigError: If `filesystem` is not a pyarrow file system.
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
    """Return the copy function of pyarrow; raise ConfigError unless `filesystem` is a pyarrow file system."""
    try:
        fs: Any = import_module("pyarrow.fs")
    except ImportError:
        fs = None
    if fs is None or not isinstance(filesystem, fs.FileSystem):
        raise ConfigError(f"filesystem must be None or a pyarrow.fs.FileSystem, got {filesystem!r:.200}")
    return fs.copy_files
