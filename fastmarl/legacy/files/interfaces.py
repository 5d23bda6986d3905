"""Base classes of readers and writers of batches, and the context for creating them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from fastmarl.core.objects.public import public


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
    """A writer that discards all batches."""

    def write(self, sample_batch: Any) -> None:
        pass


@public("fastmarl.legacy")
@dataclass
class IOContext:
    """Context passed to the readers and writers of a worker.

    Args:
        log_dir: Directory for `output="logdir"`.
        config: RolloutWorkerConfig of the worker.
        worker_index: Index of the worker.
        worker: The RolloutWorker.
    """

    log_dir: str | None = None
    config: Any = None
    worker_index: int = 0
    worker: Any = None

    def default_sampler_input(self) -> Any:
        """Return the reader of sampled batches, or None if the worker has no env."""
        return self.worker.sampler

    @property
    def input_config(self) -> Any:
        """The option `input_config` of the worker."""
        return getattr(self.config, "input_config", {})

    @property
    def output_config(self) -> Any:
        """The option `output_config` of the worker."""
        return getattr(self.config, "output_config", {})

    def spaces(self) -> dict[str, Any] | None:
        """Return policy id -> (observation space, action space) of the worker policies, or None without a worker."""
        if self.worker is None:
            return None
        policies = self.worker.policy_map.items()
        return {policy_id: (policy.observation_space, policy.action_space) for policy_id, policy in policies}
