"""What a group hands out: the batch of one call of one runner."""

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fastmarl.core.public import public
from fastmarl.core.runner.metrics import Increment, RunnerMetrics

OF_IDS = {str, int, type(None)}  # in most arrays of objects there is nothing else


@public("fastmarl.distributed")
@dataclass(frozen=True, eq=False)
class SamplePart:
    """What one runner has sampled in one call.

    Attributes:
        batch: what `make_batch` has made. Its arrays are yours: you may write to them, and keep them.
        weights_seq_no: of the weights that chose the actions of this call: `set_weights()` has returned it.
        runner_index: from 0.
        increment: what the runner has counted; `metrics` has it under its names.
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
        """What a runner that had made this call alone would report."""
        metrics = RunnerMetrics(max(1, len(self.increment.episodes)))
        metrics.merge(self.increment)
        return metrics.report(self.weights_seq_no, ())


def owned(batch: Any) -> Any:
    """The batch, with copies of arrays that can't be written to: those lie in the memory of Ray's object store, which
    they would fill for as long as anybody has one of them. Arrays are looked for in dicts, lists, tuples, named tuples
    and arrays of objects."""
    if isinstance(batch, np.ndarray):
        if batch.dtype != object:
            return batch if batch.flags.writeable else batch.copy()
        items = batch.ravel().tolist()
        if set(map(type, items)) <= OF_IDS:
            return batch
        return np.fromiter(map(owned, items), object, batch.size).reshape(batch.shape)  # observations of a Graph, say
    if isinstance(batch, dict):
        mine = copy(batch)  # it may be of another class, and have more than its items
        for key, value in batch.items():
            dict.__setitem__(mine, key, owned(value))
        return mine
    if type(batch) in (list, tuple):
        return type(batch)(map(owned, batch))
    if isinstance(batch, tuple) and hasattr(batch, "_make"):
        return batch._make(map(owned, batch))
    return batch
