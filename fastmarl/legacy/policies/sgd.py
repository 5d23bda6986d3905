"""Stochastic gradient descent in several epochs of minibatches."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.columns import Columns
from fastmarl.legacy.policies.policy import Policy

LEAST_STD = 1e-4  # as in RLlib


def standardized(values: np.ndarray) -> np.ndarray:
    """Shift and scale values to mean 0 and standard deviation 1, or to 0 if all are equal."""
    return (values - values.mean()) / max(LEAST_STD, values.std())


def minibatches(samples: Any, sgd_minibatch_size: int) -> Iterator[Any]:
    """Yield minibatches of a SampleBatch in random order.

    Steps are shuffled, but sequences of recurrent policies remain complete and, within a minibatch, in order.

    Args:
        sgd_minibatch_size: Number of steps in each minibatch, except possibly one; 0 for the entire batch.
    """
    if not sgd_minibatch_size:
        yield samples
        return
    if samples.get(Columns.SEQ_LENS) is None:
        samples.shuffle()
        pieces = [samples[begin : begin + sgd_minibatch_size] for begin in range(0, samples.count, sgd_minibatch_size)]
    else:
        pieces = list(_of_complete_sequences(samples, sgd_minibatch_size))
    random.shuffle(pieces)
    yield from pieces


def _of_complete_sequences(samples: Any, most_steps: int) -> Iterator[Any]:
    """Yield minibatches of complete sequences with at most `most_steps` steps, unless a single sequence is longer."""
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
        samples: SampleBatch or MultiAgentBatch, whose columns `standardize_fields` are replaced with standardised ones.
        learn_on_batch: Function (policy id, minibatch) -> result of `learn_on_batch()` of the policy, or None if it is
            not trained.

    Returns:
        Policy id -> means over all minibatches of the results of `learn_on_batch()`.

    Raises:
        BatchError: If a minibatch is shorter than the sequences of a recurrent policy, or a result is not a number.
    """
    found = {}
    for policy_id, batch in samples.as_multi_agent().policy_batches.items():
        policy = policies[policy_id]
        longest = policy.config.get("max_seq_len", 0) if policy.is_recurrent() else 0
        if 0 < sgd_minibatch_size < longest:
            raise BatchError(f"sgd_minibatch_size={sgd_minibatch_size} is less than max_seq_len={longest} of policy "
                             f"{policy_id!r}; increase it")  # fmt: skip
        for field in standardize_fields:
            batch[field] = standardized(batch[field])
        results = []
        for _ in range(num_sgd_iter):
            results += [learn_on_batch(policy_id, minibatch) for minibatch in minibatches(batch, sgd_minibatch_size)]
        if learned := [result for result in results if result is not None]:
            found[policy_id] = _means(learned)
    return found


def _means(results: Sequence[Any], path: tuple[Any, ...] = ()) -> Any:
    """Average equally nested results of minibatches, but take the minimum of "min_..." and the maximum of "max_...".

    NaNs are ignored unless all values are NaN. The rows of "td_error" are concatenated, and None remains None.
    """
    first = results[0]
    if isinstance(first, Mapping):
        names = dict.fromkeys(name for each in results for name in each)
        return {name: _means([each[name] for each in results if name in each], (*path, name)) for name in names}
    if isinstance(first, list | tuple):
        return type(first)(_means(each, (*path, i)) for i, each in enumerate(zip(*results, strict=True)))
    if first is None:
        return None
    if path == ("td_error",):
        return np.concatenate(results)
    try:
        values = np.asarray(results, np.float64)
    except (TypeError, ValueError) as error:
        raise BatchError(f"results of minibatches are averaged, so {'/'.join(map(str, path))} must be a number, got "
                         f"{first!r:.99}") from error  # fmt: skip
    if np.isnan(values).all():
        return math.nan
    name = path[-1] if path and isinstance(path[-1], str) else ""
    reduce = np.nanmin if name.startswith("min_") else np.nanmax if name.startswith("max_") else np.nanmean
    return float(reduce(values))
