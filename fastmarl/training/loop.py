"""The training loop: sample, learn, write the learning curve, save checkpoints."""

from __future__ import annotations

import math
import random
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastmarl.core.errors import BatchError, CheckpointError, ConfigError
from fastmarl.learning import MetricsWriter, keep_freed_memory
from fastmarl.runner.runner import MultiAgentEnvRunner
from fastmarl.training.algorithm import Algorithm, Learner
from fastmarl.training.run_folder import CURVE, RECORD, RunFolder

ROWS = 100  # approximate number of rows of a learning curve
AGENT_STEPS = "num_agent_steps_sampled_lifetime"
RETURN, RETURNS_OF_POLICIES = "episode_return_mean", "module_episode_returns_mean"


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        env_steps: Number of env steps taken.
        total: Number of env steps of the complete run.
        steps_per_second: Env steps per second since this process started training.
        mean_return: Mean return of the last 100 episodes.
    """

    env_steps: int
    total: int
    steps_per_second: float
    mean_return: float

    @property
    def seconds_left(self) -> float:
        """Estimated number of seconds until the end."""
        return max(0, self.total - self.env_steps) / self.steps_per_second


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        env_steps: Number of env steps taken.
        checkpoint: Path of the last checkpoint.
        signal: Number of the signal that interrupted the run; None if the run is finished.
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
    on_resumed: Callable[[], None] = lambda: None,
    signal: Callable[[], int | None] = lambda: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_metrics: Callable[[int, Mapping[str, Any]], None] = lambda step, metrics: None,
    evaluate: Callable[[MultiAgentEnvRunner], Mapping[str, Any]] = lambda runner: {},
    warn: Callable[[str], None] = print,
) -> Outcome:
    """Train until the end of the run or a signal; after a signal, finish the current update and save a checkpoint.

    Args:
        algorithm: The algorithm.
        args: All options, including those of the algorithm.
        folder: Directory of the run.
        resume: True to continue from the latest checkpoint instead of starting a run.
        on_resumed: Function called after the checkpoint is loaded and the curve is found to match.
        signal: Function that returns the number of a signal to stop for, or None.
        on_progress: Function called about a hundred times per run.
        on_metrics: Function that receives the env step and the values of each row in the learning curve.
        evaluate: Function that receives the runner and returns metrics for the learning curve, which are stored under
            "evaluation". It is called every `args.evaluate_every` env steps.
        warn: Function that receives messages about non-fatal problems.

    Raises:
        CheckpointError: If there is no checkpoint to resume from, or the first or last one cannot be written.
        ConfigError: If the learning curve cannot be written.
    """
    random.seed(args.seed)
    np.random.seed(args.seed % 2**32)  # noqa: NPY002  environments and networks may use it
    torch.manual_seed(args.seed % 2**64)
    torch.set_num_threads(1)  # the networks are small
    keep_freed_memory()
    config = algorithm.make_config(args)
    if args.record_actions:
        config = replace(config, record_actions=folder.path / RECORD)
    with algorithm.make_runner(config) as runner:
        loop = _Loop(algorithm, args, folder, runner, warn)
        if resume:
            loop.load()
        else:
            loop.save()  # fails early if checkpoints cannot be written
        with closing(_curve(folder, loop.env_steps if resume else None, args.tensorboard)) as curve:
            if resume:
                on_resumed()

            def report(metrics: Mapping[str, Any], progress: Progress) -> None:
                with _curve_is_written(folder):
                    curve.write(progress.env_steps, metrics)
                on_metrics(progress.env_steps, metrics)
                on_progress(progress)

            loop.run(signal, report, evaluate)
        assert loop.checkpoint is not None
        return Outcome(loop.env_steps, loop.checkpoint, signal() if loop.updates < loop.num_updates else None)


def _curve(folder: RunFolder, resume_step: int | None, tensorboard: bool) -> MetricsWriter:
    events = folder.path if tensorboard else None
    with _curve_is_written(folder):
        return MetricsWriter(csv_path=folder.path / CURVE, tensorboard_folder=events, resume_step=resume_step)


@contextmanager
def _curve_is_written(folder: RunFolder) -> Iterator[None]:
    """Convert an OSError, such as a full disk, to a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{folder.path / CURVE} can't be written: {error.strerror or error}; free disk space, then "
                          f"continue with --resume {folder.quoted}") from error  # fmt: skip


class _Loop:
    """A running training loop and its state."""

    def __init__(
        self,
        algorithm: Algorithm,
        args: Namespace,
        folder: RunFolder,
        runner: MultiAgentEnvRunner,
        warn: Callable[[str], None],
    ):
        self._runner, self._folder, self._warn = runner, folder, warn
        self._every, self._evaluate_every = args.checkpoint_every, args.evaluate_every
        self._steps_per_update = runner.num_envs * runner.config.get_rollout_fragment_length()
        self.num_updates = -(-args.steps // self._steps_per_update)
        self._learner: Learner = algorithm.make_learner(runner, args, self.num_updates)
        self.updates = 0
        self.checkpoint: Path | None = None
        self._cpu_seconds = 0.0  # CPU time used by earlier processes
        self._is_at_start = True  # True if no running episode has taken a step
        self._envs_have_states: bool | None = None

    @property
    def env_steps(self) -> int:
        return self._runner.num_env_steps_sampled_lifetime

    def run(
        self,
        signal: Callable[[], int | None],
        report: Callable[[Mapping[str, Any], Progress], None],
        evaluate: Callable[[MultiAgentEnvRunner], Mapping[str, Any]],
    ) -> None:
        """Train from the current state; save at intervals and at the end."""
        begun, first_step, cpu_begun = time.monotonic(), self.env_steps, time.process_time() - self._cpu_seconds
        due, every_row = begun + self._every, max(1, self.num_updates // ROWS)
        while self.updates < self.num_updates and signal() is None:
            before, episodes = self.env_steps, self._runner.sample()
            self._is_at_start = all(episode.is_done for episode in episodes)
            stats = self._learner.learn(episodes)
            del episodes
            self.updates += 1
            now, self._cpu_seconds = time.monotonic(), time.process_time() - cpu_begun
            interval = self._evaluate_every or math.inf
            is_evaluated = self.env_steps // interval > before // interval
            if is_evaluated or (self.updates - 1) % every_row == 0 or self.updates == self.num_updates:
                returns = self._returns()
                metrics = {"cpu_seconds": round(self._cpu_seconds, 2), **returns, **stats}
                if is_evaluated:
                    metrics["evaluation"] = _without_trace(evaluate, self._runner)
                    cpu_begun = time.process_time() - self._cpu_seconds  # evaluations do not count
                rate = (self.env_steps - first_step) / (now - begun)
                total = self.num_updates * self._steps_per_update
                report(metrics, Progress(self.env_steps, total, rate, returns[RETURN]))
            if now >= due and (self._is_exact() or now >= due + self._every):
                self._try_to_save()
                due = time.monotonic() + self._every
        self._save_at_the_end()
        if self.updates >= self.num_updates and not self._runner.get_metrics()[AGENT_STEPS]:
            raise BatchError(f"no agent has acted in {self.env_steps:,} env steps: there is nothing to learn from")

    def _returns(self) -> dict[str, Any]:
        """Return mean returns: the sum over all agents and, if there are several policies, the sum per policy."""
        metrics = self._runner.get_metrics()
        names = [RETURN, *([RETURNS_OF_POLICIES] if len(self._runner.module) > 1 else [])]
        return {name: metrics[name] for name in names}

    def _is_exact(self) -> bool:
        """Return True if a run resumed from the current state would be bit-identical.

        In the middle of an episode, this requires environments that can save their state.
        """
        if self._is_at_start:
            return True
        if self._envs_have_states is None:
            name = "running_episodes"
            self._envs_have_states = bool(self._runner.get_state(name)[name])
        return self._envs_have_states

    def save(self) -> None:
        """Write a checkpoint.

        Raises:
            CheckpointError: If it cannot be written.
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
            before = f"the last one written is {self.checkpoint.name}" if self.checkpoint else "there is no earlier one"
            raise CheckpointError(f"can't save a checkpoint after {self.env_steps:,} env steps: "
                                  f"{error.strerror or error}; {before}") from error  # fmt: skip

    def _try_to_save(self) -> None:
        """Save a checkpoint; if it cannot be written, warn and continue."""
        try:
            self.save()
        except CheckpointError as error:
            self._warn(f"{error}; training continues")

    def _save_at_the_end(self) -> None:
        try:
            self.save()
        except CheckpointError as error:
            raise CheckpointError(f"{error}; free disk space, then continue with --resume {self._folder.quoted}"
                                  ) from error  # fmt: skip

    def _save_runner(self, path: Path) -> None:
        """Save the runner.

        The seed of a reset depends on the reset count. Episodes without any step are therefore saved as not yet reset,
        so that environments that cannot save their state restart them with the same seed.
        """
        state = self._runner.get_state()
        if self._is_at_start and not state["running_episodes"]:
            state["num_resets"] = [max(0, number - 1) for number in state["num_resets"]]
        self._runner.save_to_path(path, state=state)

    def load(self) -> None:
        """Load the latest undamaged checkpoint."""
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
            raise CheckpointError(f"the learner's part of the checkpoint does not match: {error}") from error
        if not is_exact:
            self._warn("running episodes restart, because the env can't save its state: the run continues, but is not "
                       "bit-identical to an uninterrupted one")  # fmt: skip


def _without_trace(evaluate: Callable[[Any], Mapping[str, Any]], runner: MultiAgentEnvRunner) -> Mapping[str, Any]:
    """Evaluate, then restore the global random generators, so that training continues as if not evaluated."""
    generators = _random_state()
    try:
        return evaluate(runner)
    finally:
        _set_random_state(generators)


def _random_state() -> dict[str, Any]:
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
    torch.set_rng_state(torch.as_tensor(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([torch.as_tensor(each) for each in state["cuda"]])
