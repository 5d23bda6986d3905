"""What readers and writers of a worker are made from."""

from dataclasses import dataclass
from typing import Any

from fastmarl.core.public import public


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
        """What reads the batches that the worker samples itself."""
        return self.worker.sampler
