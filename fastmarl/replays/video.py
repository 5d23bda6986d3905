"""Videos of episodes, filmed by a callback while they run, or by `replay()` from a record."""

from __future__ import annotations

import math
import os
import subprocess
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from fastmarl.core.callbacks import Callbacks
from fastmarl.core.envs.arrays import ArrayEnv
from fastmarl.core.envs.form import class_of
from fastmarl.core.envs.remote import RemoteEnv
from fastmarl.core.errors import ConfigError, RecordingError
from fastmarl.core.errors.packages import how_to_install
from fastmarl.core.objects.public import public

USUAL_FPS = 30  # as in Gymnasium
FFMPEG_TIMEOUT_S = 60  # for writing the last frames, and for checking the file
NO_IMAGE = 'create the env with render_mode="rgb_array", as in env_config={"render_mode": "rgb_array"}'


class VideoFile:
    """An mp4 file written frame by frame and renamed to its final name when it is complete.

    Args:
        path: Path that ends in .mp4; missing parent directories are created.
        fps: Frames per second.
        overwrite: Replace an existing file; if False, append a number to the new one, as in "film-2.mp4".

    Raises:
        ConfigError: If the path does not end in .mp4, `fps` is not a positive number, or imageio-ffmpeg is not
            installed.
    """

    def __init__(self, path: str | os.PathLike, fps: float, *, overwrite: bool = True):
        self._path, self._overwrites = Path(path), overwrite
        if self._path.suffix.lower() != ".mp4":
            raise ConfigError(f"the path of a video must end in .mp4, got {os.fspath(path)!r}")
        if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < math.inf:
            raise ConfigError(f"fps must be a positive number, got {fps!r}")
        try:
            import imageio_ffmpeg
        except ImportError as error:
            raise ConfigError(f"videos need imageio-ffmpeg: {how_to_install('imageio_ffmpeg')}") from error
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"can't write {os.fspath(path)!r}: {error.strerror}") from error
        self._part = _part_of(self._path)
        self._ffmpeg, self._fps = imageio_ffmpeg, fps
        self._writer: Any = None
        self._shape: tuple[int, ...] | None = None
        self._give_up: Callable[[], None] | None = None

    def add(self, frame: np.ndarray) -> None:
        """Add a frame, uint8 [height, width, 3].

        Raises:
            ConfigError: If its size differs from that of the first frame.
            RecordingError: If it cannot be written.
        """
        if self._shape is None:
            if not self._overwrites:
                self._path = _free_path(self._path)
                self._part = _part_of(self._path)
            self._shape = frame.shape
            height, width, _ = _even(frame).shape
            self._writer = self._ffmpeg.write_frames(
                str(self._part), (width, height), fps=self._fps, codec="libx264", macro_block_size=1,
                ffmpeg_log_level="error", ffmpeg_timeout=FFMPEG_TIMEOUT_S,
            )  # fmt: skip
            self._writer.send(None)  # starts ffmpeg
            # Runs when the object is destroyed unless `close()` was called.
            self._give_up = weakref.finalize(self, _give_up, self._writer, self._part, os.getpid())
        if frame.shape != self._shape:
            raise ConfigError(f"all frames of a video must have the same shape, got {frame.shape} after {self._shape}")
        try:
            self._writer.send(_even(frame))
        except OSError as error:
            raise self._failed("it has exited") from error

    def finish(self) -> None:
        """Complete the video after the last frame.

        Raises:
            ConfigError: If it has no frames.
            RecordingError: If the video cannot be written.
        """
        if self._writer is None:
            raise ConfigError(f"no frames were added to {self._path}")
        try:
            self._writer.close()
            self._check()
            os.replace(self._part, self._path)
        except OSError as error:
            raise self._failed(error.strerror or str(error)) from error
        finally:
            self.close()

    def _check(self) -> None:
        """Raise RecordingError if the file cannot be read to the end, because ffmpeg does not report all failures."""
        command = [self._ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(self._part), "-c", "copy", "-f", "null", "-"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=FFMPEG_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise self._failed(f"it did not read the file back within {FFMPEG_TIMEOUT_S} s") from error
        if done.returncode or done.stderr:
            raise self._failed("the file is incomplete")

    def _failed(self, problem: str) -> RecordingError:
        return RecordingError(f"ffmpeg could not write {self._path}: {problem}; see its messages on stderr. Is the "
                              f"disk full?")  # fmt: skip

    def close(self) -> None:
        """Remove the video if it was not finished."""
        self._writer = None
        if self._give_up is not None:
            self._give_up()


def _give_up(writer: Any, part: Path, pid: int) -> None:
    """Remove an unfinished video, except in a forked process."""
    if os.getpid() == pid:
        writer.close()
        part.unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    """Return the temporary path of an incomplete video."""
    return path.with_name(f".{path.stem}.part.mp4")


def _free_path(path: Path) -> Path:
    """Reserve and return this path or, if it is taken, the first free numbered one."""
    free, number = path, 1
    while not _reserve(free):
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    return free


def _reserve(path: Path) -> bool:
    """Create the part file of a path; return False if the video, or a part file of another run, exists."""
    part = _part_of(path)
    try:
        part.touch(exist_ok=False)
    except FileExistsError:
        return False
    if path.exists():
        part.unlink()
        return False
    return True


def _even(frame: np.ndarray) -> np.ndarray:
    """Pad a frame to even height and width, which the codec requires, by repeating the last row and column."""
    height, width = frame.shape[0] % 2, frame.shape[1] % 2
    return np.pad(frame, ((0, height), (0, width), (0, 0)), "edge") if height or width else frame


def frame_of(env: Any) -> np.ndarray:
    """Return the rendered frame of the env, uint8 [height, width, 3].

    Raises:
        ConfigError: If the env does not render an image.
    """
    frame = env.render()
    if isinstance(frame, list) and frame:  # some envs return all frames since the last call
        frame = frame[-1]
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] not in (3, 4) or not frame.size:
        got = f"an array of shape {frame.shape}" if isinstance(frame, np.ndarray) else f"{type(frame).__name__}"
        raise ConfigError(
            f"expected {_name(env)}.render() to return an array [height, width, 3], got {got}; {NO_IMAGE}"
        )
    if frame.dtype != np.uint8:
        raise ConfigError(f"expected {_name(env)}.render() to return an array of uint8, from 0 to 255, got "
                          f"{frame.dtype} from {frame.min()} to {frame.max()}; convert it in the env")  # fmt: skip
    return np.ascontiguousarray(frame[..., :3])


def frames_per_second(env: Any, fps: float | None) -> float:
    """Return `fps` or, if it is None, the frame rate of the env or the default."""
    if fps is not None:
        return fps
    metadata = _attribute(env, "metadata")
    said = metadata.get("render_fps") if isinstance(metadata, dict) else None
    return said if isinstance(said, (int, float)) and said > 0 else USUAL_FPS


def _attribute(env: Any, name: str) -> Any:
    """Return an attribute of the env, in any process, or of the env it wraps; None if missing."""
    if isinstance(env, RemoteEnv):
        try:
            return env.call(name)
        except AttributeError:
            return None
    for inner in (env, getattr(env, "env", None), env.unwrapped if hasattr(env, "unwrapped") else None):
        if (value := getattr(inner, name, None)) is not None:
            return value
    return None


def _name(env: Any) -> str:
    return env.env_class[1] if isinstance(env, RemoteEnv) else class_of(env)[1]


def capped_cubic(episode: int) -> bool:
    """Return whether Gymnasium films this episode: perfect cubes below 1000, then every 1000th episode."""
    return round(episode ** (1 / 3)) ** 3 == episode if episode < 1000 else episode % 1000 == 0


@public("fastmarl.replays")
class VideoCallback(Callbacks):
    """Records videos of chosen episodes, with the arguments of the Gymnasium `RecordVideo` wrapper.

    ```python
    config = fastmarl.EnvRunnerConfig(
        env="mpe2.simple_spread_v3",
        env_config={"render_mode": "rgb_array"},
        callbacks_class=lambda: fastmarl.VideoCallback("videos", episode_trigger=lambda episode: episode % 100 == 0),
    )
    ```

    Only the envs in `env_indices` are rendered, and only during a video. Episodes and steps are counted over all of
    these envs. During a video, and always if there is a `step_trigger`, the runner creates a chunk for every env in
    every step, as for any `on_episode_step`; at other times the callback costs almost nothing.

    Args:
        path: Directory of the videos, which are named `<name_prefix>-episode-<k>.mp4` or `<name_prefix>-step-<k>.mp4`.
            Names also include a worker_index above 0, and the env index, except for the first env. If a file exists,
            for example from an earlier run, a number is appended: `<name_prefix>-episode-<k>-2.mp4`.
        episode_trigger: Function (episode index) -> bool that returns True to start a video of the episode.
        step_trigger: Function (env step index) -> bool that returns True to start a video at this step. If neither
            trigger is given, episodes 0, 1, 8, 27, ..., 1000, 2000, ... are filmed.
        video_length: Maximum number of frames of a video, all from the same episode; 0 to film until the episode ends.
        name_prefix: Prefix of the file names.
        fps: Frames per second; None for `metadata["render_fps"]` of the env, or 30.
        env_indices: Indices of the envs to film.

    Raises:
        ConfigError: If an argument is invalid, imageio-ffmpeg is not installed, or the created envs cannot render
            images.
        RecordingError: If `sample()` cannot write a video.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        episode_trigger: Callable[[int], bool] | None = None,
        step_trigger: Callable[[int], bool] | None = None,
        video_length: int = 0,
        name_prefix: str = "rl-video",
        fps: float | None = None,
        *,
        env_indices: Collection[int] = (0,),
    ):
        if isinstance(video_length, bool) or not isinstance(video_length, int) or video_length < 0:
            raise ConfigError(f"video_length must be a non-negative integer, got {video_length!r}")
        for name, trigger in (("episode_trigger", episode_trigger), ("step_trigger", step_trigger)):
            if trigger is not None and not callable(trigger):
                raise ConfigError(f"{name} must be None or a function (index) -> bool, got {trigger!r}")
        if not isinstance(env_indices, Collection):
            raise ConfigError(f"env_indices must be a collection of env indices, got {env_indices!r}")
        for index in env_indices:
            if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
                raise ConfigError(f"env_indices must contain only integers, got {index!r} in {env_indices!r}")
        if not isinstance(name_prefix, str):
            raise ConfigError(f"name_prefix must be a string, got {name_prefix!r}")
        VideoFile(Path(path, "any.mp4"), USUAL_FPS if fps is None else fps)  # raises errors early
        self._folder, self._prefix, self._fps = Path(path), name_prefix, fps
        neither = episode_trigger is None and step_trigger is None
        self._episode_trigger = capped_cubic if neither else episode_trigger
        self._step_trigger = step_trigger
        self._most_frames = video_length or math.inf
        self._env_indices = frozenset(env_indices)
        self._files: dict[int, tuple[VideoFile, int]] = {}  # env index -> (video in progress, number of frames)
        self._listeners: weakref.ref[Any]  # the listeners of the runner reference this object
        self._n_episodes = self._n_steps = 0

    def on_environment_created(self, *, env: Any, env_runner: Any, **kwargs: Any) -> None:
        """Check that the chosen envs can render, and drop unfinished videos."""
        listeners = getattr(env_runner, "_listeners", None)
        if listeners is None:
            raise ConfigError(f"VideoCallback needs a fastmarl.MultiAgentEnvRunner, got {type(env_runner).__name__}")
        self._listeners = weakref.ref(listeners)
        self._drop(self._files)
        if isinstance(env.envs[0], ArrayEnv):
            raise ConfigError(f"VideoCallback supports only single envs, but {_name(env.envs[0])} is a batch of envs; "
                              f"set record_actions, and film episodes with fastmarl.replay()")  # fmt: skip
        if unknown := sorted(index for index in self._env_indices if not 0 <= index < len(env.envs)):
            raise ConfigError(f"env_indices of VideoCallback has {unknown}, but there are {len(env.envs)} envs")
        for index in self._env_indices:
            mode = _attribute(env.envs[index], "render_mode")
            if mode is not None and mode != "rgb_array":
                raise ConfigError(f"VideoCallback needs images, but the render_mode of env {index} is {mode!r}; "
                                  f"{NO_IMAGE}")  # fmt: skip

    def on_episode_start(self, *, env: Any, env_index: int, env_runner: Any, **kwargs: Any) -> None:
        """Start a video if the trigger chooses this episode."""
        if env_index not in self._env_indices:
            return
        self._drop([env_index])
        number, self._n_episodes = self._n_episodes, self._n_episodes + 1
        if self._episode_trigger is not None and self._episode_trigger(number):
            self._begin(env.envs[env_index], env_index, f"episode-{number}", env_runner)

    def _on_step(self, *, env: Any, env_index: int, env_runner: Any, **kwargs: Any) -> None:
        """Add a frame to a video in progress, or start one if the trigger chooses this step."""
        if env_index not in self._env_indices:
            return
        number, self._n_steps = self._n_steps, self._n_steps + 1
        if env_index in self._files:
            self._add(env.envs[env_index], env_index)
        elif self._step_trigger is not None and self._step_trigger(number):
            self._begin(env.envs[env_index], env_index, f"step-{number}", env_runner)

    def on_episode_end(self, *, env_index: int, **kwargs: Any) -> None:
        """Finish the video of the episode."""
        self._finish(env_index)

    def _listen(self) -> None:
        """Listen to steps only while needed, because the runner then creates a chunk in every step."""
        listeners: Any = self._listeners()
        if self._files or self._step_trigger is not None:
            listeners.add("on_episode_step", self._on_step)
        else:
            listeners.remove("on_episode_step", self._on_step)

    def _begin(self, env: Any, env_index: int, name: str, env_runner: Any) -> None:
        worker = f"-worker-{env_runner.worker_index}" if env_runner.worker_index else ""
        which = f"-env-{env_index}" if env_index else ""
        path = self._folder / f"{self._prefix}{worker}{which}-{name}.mp4"
        file = VideoFile(path, frames_per_second(env, self._fps), overwrite=False)
        self._files[env_index] = file, 0
        self._listen()
        self._add(env, env_index)

    def _add(self, env: Any, env_index: int) -> None:
        file, n_frames = self._files[env_index]
        try:
            file.add(frame_of(env))
        except BaseException:
            self._drop([env_index])
            raise
        self._files[env_index] = file, n_frames + 1
        if n_frames + 1 >= self._most_frames:
            self._finish(env_index)

    def _finish(self, env_index: int) -> None:
        if env_index in self._files:
            file, _ = self._files.pop(env_index)
            self._listen()
            file.finish()

    def _drop(self, env_indices: Collection[int]) -> None:
        """Delete unfinished videos of these envs, whose episodes were dropped."""
        for env_index in list(env_indices):
            if env_index in self._files:
                self._files.pop(env_index)[0].close()
        self._listen()
