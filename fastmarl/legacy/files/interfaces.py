"""Base classes of readers and writers of batches, and the context that they are made with."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from fastmarl.core.public import public


@public("fastmarl.legacy")
class InputReader(ABC):
    """Base class of readers of batches."""

    @abstractmethod
    def next(self) -> Any:
        """Return the next SampleBatch or MultiAgentBatch."""


@public("fastmarl.legacy")
class OutputWriter(ABC):
    """Base class of writers of batches."""

    @abstractmethod
    def write(self, sample_batch: Any) -> None:
        """Write `sample_batch`, a SampleBatch or MultiAgentBatch."""

    def close(self) -> None:
        """Release resources; called after the last `write()`."""
        return


class NoopOutput(OutputWriter):
    """The writer without output: it discards all batches."""

    def write(self, sample_batch: Any) -> None:
        pass


@public("fastmarl.legacy")
@dataclass
class IOContext:
    """The worker that a reader or writer is made for.

    Args:
        log_dir: Folder for `output="logdir"`.
        config: The worker's RolloutWorkerConfig.
        worker_index: The worker's index.
        worker: The RolloutWorker.
    """

    log_dir: str | None
    config: Any
    worker_index: int
    worker: Any

    def default_sampler_input(self) -> Any:
        """Return the reader of the batches that the worker itself samples."""
        return self.worker.sampler
