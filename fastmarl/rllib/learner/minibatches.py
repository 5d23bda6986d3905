"""RLlib's minibatches without a SampleBatch for each: slices of the train batch's columns, or their rows' numbers."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch


class MinibatchRows(dict[str, torch.Tensor]):
    """Columns of so many rows, which `len()` tells as it does of a SampleBatch."""

    def __len__(self) -> int:
        return len(next(iter(self.values())))


class RowNumbers:
    """Rows of a train batch by their numbers.

    Args:
        columns: of the train batch.
        numbers: int64 [n].
    """

    def __init__(self, columns: dict[str, torch.Tensor], numbers: torch.Tensor):
        self.numbers = numbers
        self._columns = columns

    def __len__(self) -> int:
        return len(self.numbers)

    def get(self, name: str) -> None:
        """What RLlib asks for is lengths of sequences, of which there are none."""

    def columns(self) -> MinibatchRows:
        """Those rows."""
        return MinibatchRows((name, column[self.numbers]) for name, column in self._columns.items())


class MinibatchSource(Protocol):
    """Where a module's minibatches come from."""

    def shuffle(self) -> None:
        """Draw RLlib's random numbers, and bring the rows into the order that they say."""

    def part(self, begin: int, end: int) -> Any:
        """Some rows, in the present order."""

    def joined(self, parts: list[Any]) -> Any:
        """A minibatch."""


class ColumnSlices:
    """A train batch's columns, cut into slices.

    Args:
        batch: its rows are shuffled by RLlib's own method.
    """

    def __init__(self, batch: SampleBatch):
        self._batch = batch

    def shuffle(self) -> None:
        """See MinibatchSource."""
        self._batch.shuffle()

    def part(self, begin: int, end: int) -> list[torch.Tensor]:
        """See MinibatchSource."""
        return [column[begin:end] for column in self._batch.values()]

    def joined(self, parts: list[list[torch.Tensor]]) -> MinibatchRows:
        """In memory of their own, as RLlib has them: where inputs lie decides on the last bits of a matrix product."""
        return MinibatchRows(zip(self._batch, map(torch.cat, zip(*parts, strict=True)), strict=True))


class Numbers:
    """The numbers of a train batch's rows. The batch itself stays in its order."""

    def __init__(self, batch: SampleBatch):
        self._columns = dict(batch)
        self._order = torch.arange(len(batch), device="cpu")

    def shuffle(self) -> None:
        """See MinibatchSource."""
        self._order = self._order[torch.from_numpy(np.random.permutation(len(self._order)))]  # noqa: NPY002

    def part(self, begin: int, end: int) -> torch.Tensor:
        """See MinibatchSource."""
        return self._order[begin:end]

    def joined(self, parts: list[torch.Tensor]) -> RowNumbers:
        """See MinibatchSource."""
        return RowNumbers(self._columns, parts[0] if len(parts) == 1 else torch.cat(parts))


class Minibatch:
    """What RLlib's learner asks of a MultiAgentBatch.

    Args:
        policy_batches: MinibatchRows or RowNumbers by module id.
        n_env_steps: of the whole train batch, as RLlib's minibatches say.
    """

    def __init__(self, policy_batches: dict[str, Any], n_env_steps: int):
        self.policy_batches = policy_batches
        self._n_env_steps = n_env_steps

    def env_steps(self) -> int:
        """See the class."""
        return self._n_env_steps


def are_plain(batch: MultiAgentBatch) -> bool:
    """Whether all columns of a train batch are tensors whose rows are steps."""
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
    """RLlib's minibatches of a batch that `are_plain()`: each module goes through its rows again and again.

    Args:
        batch: the train batch.
        size: rows of each module in a minibatch.
        n_epochs: how often each row is to come at least, where `n_total` is 0.
        n_total: how many minibatches there are to be; 0: as many as that takes.
        shuffles: whether a module's rows are shuffled when they have all come.
        source_class: what makes minibatches from a module's rows.
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
