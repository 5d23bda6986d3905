"""Where a worker's batches come from."""

from abc import ABC, abstractmethod
from typing import Any


class InputReader(ABC):
    """Reads batches."""

    @abstractmethod
    def next(self) -> Any:
        """The next SampleBatch or MultiAgentBatch."""
