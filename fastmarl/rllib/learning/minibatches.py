"""RLlib's minibatches without a SampleBatch for each: slices of the train batch's columns."""

from collections.abc import Iterator

import torch
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch


class Rows(dict[str, torch.Tensor]):
    """Columns of so many rows, which `len()` tells as it does of a SampleBatch."""

    def __len__(self) -> int:
        return len(next(iter(self.values())))


class Minibatch:
    """What RLlib's learner asks of a MultiAgentBatch.

    Args:
        policy_batches: by module id.
        n_env_steps: of the whole train batch, as RLlib's minibatches say.
    """

    def __init__(self, policy_batches: dict[str, Rows], n_env_steps: int):
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
    batch: MultiAgentBatch, *, size: int, n_epochs: int, n_total: int, shuffles: bool
) -> Iterator[Minibatch]:
    """RLlib's minibatches of a batch that `are_plain()`: each module goes through its rows again and again.

    Args:
        batch: the train batch; its rows are shuffled by RLlib's own method, which draws RLlib's random numbers.
        size: rows of each module in a minibatch.
        n_epochs: how often each row is to come at least, where `n_total` is 0.
        n_total: how many minibatches there are to be; 0: as many as that takes.
        shuffles: whether a module's rows are shuffled when they have all come.
    """
    begins = dict.fromkeys(batch.policy_batches, 0)
    n_covered = dict.fromkeys(batch.policy_batches, 0)
    n_made = 0
    while n_made < n_total if n_total > 0 else min(n_covered.values()) < n_epochs:
        rows = {}
        for module_id, module_batch in batch.policy_batches.items():
            parts, begin, n_wanted, n_rows = [], begins[module_id], size, len(module_batch)
            while begin + n_wanted >= n_rows:
                parts.append([column[begin:] for column in module_batch.values()])
                n_wanted -= n_rows - begin
                begin = 0
                n_covered[module_id] += 1
                if shuffles:
                    module_batch.shuffle()
            if n_wanted > 0:
                parts.append([column[begin : begin + n_wanted] for column in module_batch.values()])
            begins[module_id] = begin + n_wanted
            # In memory of their own, as RLlib has them: where inputs lie decides on the last bits of a matrix product.
            joined = map(torch.cat, zip(*parts, strict=True))
            rows[module_id] = Rows(zip(module_batch, joined, strict=True))
        yield Minibatch(rows, len(batch))
        n_made += 1
