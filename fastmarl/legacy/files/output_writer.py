"""Where a worker's batches go to."""

from abc import ABC, abstractmethod
from typing import Any

from fastmarl.core.public import public


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
