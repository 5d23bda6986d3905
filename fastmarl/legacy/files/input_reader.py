"""Where a worker's batches come from."""

from abc import ABC, abstractmethod
from typing import Any

from fastmarl.core.public import public


@public("fastmarl.legacy")
class InputReader(ABC):
    """Reads batches."""

    @abstractmethod
    def next(self) -> Any:
        """The next SampleBatch or MultiAgentBatch."""
