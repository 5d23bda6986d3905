"""Parts returned by a group, each with the batch of a single runner call."""

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fastmarl.core.objects.public import public
from fastmarl.runner.loop.runner_metrics import Increment, RunnerMetrics

OF_IDS = {str, int, type(None)}  # most object arrays contain nothing else


@public("fastmarl.distributed")
@dataclass(frozen=True, eq=False)
class SamplePart:
    """Samples of a single runner call.

    Attributes:
        batch: Result of `make_batch`. Its arrays belong to the caller: they may be written to and kept.
        weights_seq_no: Sequence number of the weights used in this call, as returned by `set_weights()`.
        runner_index: Index of the runner, from 0.
        increment: Increments of the runner counters, which `metrics` returns under their public names.
    """

    batch: Any
    weights_seq_no: int
    runner_index: int
    increment: Increment

    @property
    def num_env_steps(self) -> int:
        return self.increment.counts.env_steps

    @property
    def num_agent_steps(self) -> int:
        return sum(self.increment.counts.agent_steps.values())

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Metrics of this call alone, in the format of `MultiAgentEnvRunner.get_metrics()`."""
        metrics = RunnerMetrics(max(1, len(self.increment.episodes)))
        metrics.merge(self.increment)
        return metrics.report(self.weights_seq_no, ())


def owned(batch: Any) -> Any:
    """Return the batch with copies of its read-only arrays.

    Read-only arrays are views of the Ray object store and would occupy it as long as they exist. Arrays are found in
    dicts, lists, tuples, named tuples and object arrays.
    """
    if isinstance(batch, np.ndarray):
        if batch.dtype != object:
            return batch if batch.flags.writeable else batch.copy()
        items = batch.ravel().tolist()
        if set(map(type, items)) <= OF_IDS:
            return batch
        return np.fromiter(map(owned, items), object, batch.size).reshape(batch.shape)  # such as Graph observations
    if isinstance(batch, dict):
        mine = copy(batch)  # may be a subclass with extra attributes
        for key, value in batch.items():
            dict.__setitem__(mine, key, owned(value))
        return mine
    if type(batch) in (list, tuple):
        return type(batch)(map(owned, batch))
    if isinstance(batch, tuple) and hasattr(batch, "_make"):
        return batch._make(map(owned, batch))
    return batch
