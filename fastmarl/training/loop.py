"""The training loop: sample, learn, write the curve, save."""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastmarl.core.errors import CheckpointError, ConfigError
from fastmarl.core.runner.runner import MultiAgentEnvRunner
from fastmarl.learning import MetricsWriter, keep_freed_memory
from fastmarl.training.algorithm import Algorithm, Learner
from fastmarl.training.run_folder import CURVE, RunFolder

ROWS = 100  # of a learning curve
RETURN = "episode_return_mean"


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        env_steps, total: done, and of the whole run.
        steps_per_second: since the process began to train.
        mean_return: of the last 100 episodes.
    """

    env_steps: int
    total: int
    steps_per_second: float
    mean_return: float

    @property
    def seconds_left(self) -> float:
        return max(0, self.total - self.env_steps) / self.steps_per_second


@dataclass(frozen=True)
class Outcome:
    """How a run has ended.

    Attributes:
        env_steps: done.
        checkpoint: the last one.
        signal: number of the signal that ended it early; None: it is finished.
    """

    env_steps: int
    checkpoint: Path
    signal: int | None


def train(
    algorithm: Algorithm,
    args: Namespace,
    folder: RunFolder,
    *,
    resume: bool = False,
    signal: Callable[[], int | None] = lambda: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_metrics: Callable[[int, Mapping[str, Any]], None] = lambda step, metrics: None,
    warn: Callable[[str], None] = print,
) -> Outcome:
    """Train until the end, or until a signal, after which the update under way is finished and saved.

    Args:
        args: the options, with those of the algorithm.
        folder: of the run.
        resume: continue from the newest checkpoint instead of starting.
        signal: returns the number of the signal that the run is to end for, or None.
        on_progress: is called about a hundred times a run.
        on_metrics: gets each row of the learning curve.
        warn: is called with what went wrong and does not end the run.

    Raises:
        CheckpointError: there is no checkpoint to resume from, or the first or last one can't be written.
        ConfigError: the curve can't be written.
    """
    random.seed(args.seed)
    np.random.seed(args.seed % 2**32)  # noqa: NPY002  environments and networks may draw from it
    torch.manual_seed(args.seed % 2**64)
    torch.set_num_threads(1)  # the networks are small
    keep_freed_memory()
    with MultiAgentEnvRunner(algorithm.make_config(args)) as runner:
        loop = _Loop(algorithm, args, folder, runner, warn)
        if resume:
            loop.load()
        else:
            loop.save()  # finds out at once whether it can
        with closing(_curve(folder, loop.env_steps if resume else None, args.tensorboard)) as curve:

            def report(metrics: Mapping[str, Any], progress: Progress) -> None:
                with _curve_is_written(folder):
                    curve.write(progress.env_steps, metrics)
                on_metrics(progress.env_steps, metrics)
                on_progress(progress)

            loop.run(signal, report)
        assert loop.checkpoint is not None
        return Outcome(loop.env_steps, loop.checkpoint, signal() if loop.updates < loop.num_updates else None)


def _curve(folder: RunFolder, resume_step: int | None, tensorboard: bool) -> MetricsWriter:
    events = folder.path if tensorboard else None
    with _curve_is_written(folder):
        return MetricsWriter(csv_path=folder.path / CURVE, tensorboard_folder=events, resume_step=resume_step)


@contextmanager
def _curve_is_written(folder: RunFolder) -> Iterator[None]:
    """Raise a ConfigError for a full disk, and the like."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{folder.path / CURVE} can't be written: {error.strerror or error}; make room, then go on "
                          f"with --resume {folder.quoted}") from error  # fmt: skip


class _Loop:
    """A run under way."""

    def __init__(
        self,
        algorithm: Algorithm,
        args: Namespace,
        folder: RunFolder,
        runner: MultiAgentEnvRunner,
        warn: Callable[[str], None],
    ):
        self._runner, self._folder, self._warn = runner, folder, warn
        self._every = args.checkpoint_every
        self._steps_per_update = runner.num_envs * runner.config.get_rollout_fragment_length()
        self.num_updates = -(-args.steps // self._steps_per_update)
        self._learner: Learner = algorithm.make_learner(runner, args, self.num_updates)
        self.updates = 0
        self.checkpoint: Path | None = None
        self._cpu_seconds = 0.0  # of earlier processes
        self._is_at_start = True  # of all episodes under way: none has made a step
        self._envs_have_states: bool | None = None

    @property
    def env_steps(self) -> int:
        return self._runner.num_env_steps_sampled_lifetime

    def run(self, signal: Callable[[], int | None], report: Callable[[Mapping[str, Any], Progress], None]) -> None:
        """Train from where it is; save at intervals and in the end."""
        begun, first_step, cpu_begun = time.monotonic(), self.env_steps, time.process_time() - self._cpu_seconds
        due, every_row = begun + self._every, max(1, self.num_updates // ROWS)
        while self.updates < self.num_updates and signal() is None:
            episodes = self._runner.sample()
            self._is_at_start = all(episode.is_done for episode in episodes)
            stats = self._learner.learn(episodes)
            del episodes
            self.updates += 1
            now, self._cpu_seconds = time.monotonic(), time.process_time() - cpu_begun
            if (self.updates - 1) % every_row == 0 or self.updates == self.num_updates:
                mean = self._runner.get_metrics()[RETURN]
                metrics = {"cpu_seconds": round(self._cpu_seconds, 2), RETURN: mean, **stats}
                rate = (self.env_steps - first_step) / (now - begun)
                total = self.num_updates * self._steps_per_update
                report(metrics, Progress(self.env_steps, total, rate, mean))
            if now >= due and (self._is_exact() or now >= due + self._every):
                self._try_to_save()
                due = time.monotonic() + self._every
        self._save_at_the_end()

    def _is_exact(self) -> bool:
        """Return whether a run that is resumed from here is bit-identical: it needs the states of environments that
        are within an episode."""
        if self._is_at_start:
            return True
        if self._envs_have_states is None:
            name = "running_episodes"
            self._envs_have_states = bool(self._runner.get_state(name)[name])
        return self._envs_have_states

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: it can't be written.
        """
        state = {
            "learner": self._learner.get_state(),
            "random": _random_state(),
            "updates": self.updates,
            "cpu_seconds": self._cpu_seconds,
            "is_exact": self._is_exact(),
        }
        try:
            self.checkpoint = self._folder.save_checkpoint(self.env_steps, self._save_runner, state)
        except OSError as error:
            before = f"the one before is {self.checkpoint.name}" if self.checkpoint else "there is none before"
            raise CheckpointError(f"no checkpoint after {self.env_steps:,} env steps: {error.strerror or error}; "
                                  f"{before}") from error  # fmt: skip

    def _try_to_save(self) -> None:
        """Go on training with a warning if a checkpoint can't be written; the next one may be."""
        try:
            self.save()
        except CheckpointError as error:
            self._warn(f"{error}, and the training goes on")

    def _save_at_the_end(self) -> None:
        try:
            self.save()
        except CheckpointError as error:
            raise CheckpointError(f"{error}; make room, then go on from there with --resume {self._folder.quoted}"
                                  ) from error  # fmt: skip

    def _save_runner(self, path: Path) -> None:
        """Save the runner so that environments without a state begin the same episodes again, where these have only
        been reset: the number of a reset is what its seed follows from."""
        state = self._runner.get_state()
        if self._is_at_start and not state["running_episodes"]:
            state["num_resets"] = [max(0, number - 1) for number in state["num_resets"]]
        self._runner.save_to_path(path, state=state)

    def load(self) -> None:
        """Take the newest checkpoint."""
        self.checkpoint = self._folder.load_checkpoint(self._runner.restore_from_path, self._take, self._warn)

    def _take(self, state: dict[str, Any]) -> None:
        try:
            self._learner.set_state(state["learner"])
            self.updates, self._cpu_seconds = int(state["updates"]), float(state["cpu_seconds"])
            is_exact, generators = state["is_exact"], state["random"]
            _set_random_state(generators)
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise CheckpointError(f"the learner's part of the checkpoint does not fit: {error}") from error
        if not is_exact:
            self._warn("episodes that were under way begin again, since the env can't save its state: the run goes on, "
                       "but is not bit-identical to an uninterrupted one")  # fmt: skip


def _random_state() -> dict[str, Any]:
    """Return the states of the global generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def _set_random_state(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(torch.from_numpy(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([torch.from_numpy(each) for each in state["cuda"]])
