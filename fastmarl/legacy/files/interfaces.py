"""Where a worker's batches come from and go to: base classes, and what readers and writers are made from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from fastmarl.core.public import public


@public("fastmarl.legacy")
class InputReader(ABC):
    """Reads batches."""

    @abstractmethod
    def next(self) -> Any:
        """The next SampleBatch or MultiAgentBatch."""


@public("fastmarl.legacy")
class OutputWriter(ABC):
    """Writes batches."""

    @abstractmethod
    def write(self, sample_batch: Any) -> None:
        """Write a SampleBatch or MultiAgentBatch."""

    def close(self) -> None:
        """Nothing more will be written."""
        return


class NoopOutput(OutputWriter):
    """Writes nothing."""

    def write(self, sample_batch: Any) -> None:
        pass


@public("fastmarl.legacy")
@dataclass
class IOContext:
    """Where and for whom batches are read and written.

    Args:
        log_dir: folder of `output="logdir"`.
        config: RolloutWorkerConfig.
        worker_index: of the worker.
        worker: RolloutWorker.
    """

    log_dir: str | None
    config: Any
    worker_index: int
    worker: Any

    def default_sampler_input(self) -> Any:
        """Return the reader of the batches that the worker samples itself."""
        return self.worker.sampler
