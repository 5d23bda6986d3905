"""Stochastic gradient descent: epochs of minibatches over a batch."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fastmarl.core.columns import Columns
from fastmarl.core.errors import BatchError
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.policies.torch_policy import LEARNER_STATS

LEAST_STD = 1e-4  # RLlib's


def standardized(values: np.ndarray) -> np.ndarray:
    """Shift and scale values to mean 0 and standard deviation 1; equal values all become 0."""
    return (values - values.mean()) / max(LEAST_STD, values.std())


def minibatches(samples: Any, sgd_minibatch_size: int) -> Iterator[Any]:
    """Yield minibatches of a SampleBatch in random order.

    Steps are shuffled; sequences of recurrent policies stay whole and in order.

    Args:
        sgd_minibatch_size: Number of steps in each minibatch; one of them may have fewer. 0: the batch itself.
    """
    if not sgd_minibatch_size:
        yield samples
        return
    if samples.get(Columns.SEQ_LENS) is None:
        samples.shuffle()
        pieces = [samples[begin : begin + sgd_minibatch_size] for begin in range(0, samples.count, sgd_minibatch_size)]
    else:
        pieces = list(_of_whole_sequences(samples, sgd_minibatch_size))
    random.shuffle(pieces)
    yield from pieces


def _of_whole_sequences(samples: Any, most_steps: int) -> Iterator[Any]:
    """Yield minibatches of at least one sequence each, and as many as have at most `most_steps` steps in total."""
    ends = np.cumsum(samples[Columns.SEQ_LENS])
    first = begin = 0
    while first < len(ends):
        after = max(int(np.searchsorted(ends, begin + most_steps, "right")), first + 1)
        end = int(ends[after - 1])
        yield samples.slice(begin, end, first, after)
        first, begin = after, end


def do_minibatch_sgd(
    samples: Any,
    policies: Mapping[str, Policy],
    learn_on_batch: Callable[[str, Any], Mapping[str, Any] | None],
    num_sgd_iter: int,
    sgd_minibatch_size: int,
    standardize_fields: Sequence[str],
) -> dict[str, Any]:
    """Learn from a batch in several epochs.

    Args:
        samples: SampleBatch or MultiAgentBatch, in which the columns `standardize_fields` are replaced.
        learn_on_batch: (policy id, minibatch) -> result of the policy's `learn_on_batch()`; None: it doesn't learn.

    Returns:
        Policy id -> {"learner_stats": means over all minibatches}

    Raises:
        BatchError: If a minibatch is shorter than the sequences of a recurrent policy.
    """
    found = {}
    for policy_id, batch in samples.as_multi_agent().policy_batches.items():
        policy = policies[policy_id]
        longest = policy.config.get("max_seq_len", 0) if policy.is_recurrent() else 0
        if 0 < sgd_minibatch_size < longest:
            raise BatchError(f"sgd_minibatch_size={sgd_minibatch_size} is less than max_seq_len={longest} of policy "
                             f"{policy_id!r}; take at least as many steps")  # fmt: skip
        for field in standardize_fields:
            batch[field] = standardized(batch[field])
        results = []
        for _ in range(num_sgd_iter):
            results += [learn_on_batch(policy_id, minibatch) for minibatch in minibatches(batch, sgd_minibatch_size)]
        if learned := [result[LEARNER_STATS] for result in results if result is not None]:
            found[policy_id] = {LEARNER_STATS: _means(learned)}
    return found


def _means(dicts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    values = defaultdict(list)
    for each in dicts:
        for name, value in each.items():
            values[name].append(value)
    return {name: float(np.mean(of_all)) for name, of_all in values.items()}
