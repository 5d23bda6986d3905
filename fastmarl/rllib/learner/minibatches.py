"""RLlib minibatches without SampleBatches: column slices of the train batch, or indices of its rows."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch


class MinibatchRows(dict[str, torch.Tensor]):
    """Columns of a minibatch. `len()` is the number of rows, as for a SampleBatch."""

    def __len__(self) -> int:
        return len(next(iter(self.values())))


class RowNumbers:
    """A minibatch as row indices of a train batch.

    Args:
        columns: Columns of the train batch.
        numbers: Row indices, int64 [n].
    """

    def __init__(self, columns: dict[str, torch.Tensor], numbers: torch.Tensor):
        self.numbers = numbers
        self._columns = columns

    def __len__(self) -> int:
        return len(self.numbers)

    def get(self, name: str) -> None:
        """Return None, because RLlib only looks up "seq_lens" and there are no sequences."""

    def columns(self) -> MinibatchRows:
        """Return the columns at these rows."""
        return MinibatchRows((name, column[self.numbers]) for name, column in self._columns.items())


class MinibatchSource(Protocol):
    """Interface for sources of minibatches of a module."""

    def shuffle(self) -> None:
        """Shuffle the rows with the same random numbers as RLlib."""

    def part(self, begin: int, end: int) -> Any:
        """Return rows [begin, end) in the current order."""

    def joined(self, parts: list[Any]) -> Any:
        """Join these parts into a minibatch."""


class ColumnSlices:
    """Source of minibatches that are column slices of the train batch.

    Args:
        batch: The train batch, shuffled in place by the RLlib method.
    """

    def __init__(self, batch: SampleBatch):
        self._batch = batch

    def shuffle(self) -> None:
        self._batch.shuffle()

    def part(self, begin: int, end: int) -> list[torch.Tensor]:
        return [column[begin:end] for column in self._batch.values()]

    def joined(self, parts: list[list[torch.Tensor]]) -> MinibatchRows:
        """Copy the parts as in RLlib, because the last bits of a matrix product depend on input alignment."""
        return MinibatchRows(zip(self._batch, map(torch.cat, zip(*parts, strict=True)), strict=True))


class Numbers:
    """Source of minibatches that are row indices. The train batch itself is not reordered."""

    def __init__(self, batch: SampleBatch):
        self._columns = dict(batch)
        self._order = torch.arange(len(batch), device="cpu")

    def shuffle(self) -> None:
        self._order = self._order[torch.from_numpy(np.random.permutation(len(self._order)))]  # noqa: NPY002

    def part(self, begin: int, end: int) -> torch.Tensor:
        return self._order[begin:end]

    def joined(self, parts: list[torch.Tensor]) -> RowNumbers:
        return RowNumbers(self._columns, parts[0] if len(parts) == 1 else torch.cat(parts))


class Minibatch:
    """A minibatch of all modules, with the part of the MultiAgentBatch interface used by the RLlib learner.

    Args:
        policy_batches: Module id -> MinibatchRows or RowNumbers.
        n_env_steps: Number of env steps in the entire train batch; RLlib's minibatches also report this number.
    """

    def __init__(self, policy_batches: dict[str, Any], n_env_steps: int):
        self.policy_batches = policy_batches
        self._n_env_steps = n_env_steps

    def env_steps(self) -> int:
        """Return the number of env steps of the train batch."""
        return self._n_env_steps


def are_plain(batch: MultiAgentBatch) -> bool:
    """Return True if all columns of a train batch are tensors with one row per step."""
    return all(
        type(module_batch) is SampleBatch
        and not module_batch._slice_seq_lens_in_B
        and module_batch.get(SampleBatch.SEQ_LENS) is None
        and len(module_batch) > 0
        and all(type(column) is torch.Tensor and len(column) == len(module_batch) for column in module_batch.values())
        for module_batch in batch.policy_batches.values()
    )


def minibatches(
    batch: MultiAgentBatch,
    *,
    size: int,
    n_epochs: int,
    n_total: int,
    shuffles: bool,
    source_class: type[ColumnSlices] | type[Numbers],
) -> Iterator[Minibatch]:
    """Yield minibatches of a train batch as in RLlib; each module cycles through its rows.

    Args:
        batch: The train batch, for which `are_plain()` returns True.
        size: Number of rows per module in a minibatch.
        n_epochs: If `n_total` is 0, stop once each row has been used at least this many times.
        n_total: Number of minibatches, or 0 to use `n_epochs`.
        shuffles: True to shuffle the rows of a module after each pass over them.
        source_class: Class of the sources of minibatches.
    """
    sources: dict[str, MinibatchSource] = {name: source_class(rows) for name, rows in batch.policy_batches.items()}
    begins, n_covered = dict.fromkeys(sources, 0), dict.fromkeys(sources, 0)
    n_made = 0
    while n_made < n_total if n_total > 0 else min(n_covered.values()) < n_epochs:
        rows = {}
        for module_id, source in sources.items():
            parts, begin, n_wanted, n_rows = [], begins[module_id], size, len(batch.policy_batches[module_id])
            while begin + n_wanted >= n_rows:
                parts.append(source.part(begin, n_rows))
                n_wanted -= n_rows - begin
                begin = 0
                n_covered[module_id] += 1
                if shuffles:
                    source.shuffle()
            if n_wanted > 0:
                parts.append(source.part(begin, begin + n_wanted))
            begins[module_id] = begin + n_wanted
            rows[module_id] = source.joined(parts)
        yield Minibatch(rows, len(batch))
        n_made += 1
