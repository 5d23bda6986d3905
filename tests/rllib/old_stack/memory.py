"""Lists the arrays in what workers return, all of which must lie in memory of their own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tree
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch


def columns(value: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    """The columns of batches, with their paths."""
    if isinstance(value, tuple) and value and isinstance(value[0], (SampleBatch, MultiAgentBatch)):
        value = value[0]  # sample_with_count()
    if isinstance(value, MultiAgentBatch):
        for name, batch in value.policy_batches.items():
            yield from columns(batch, f"{path}[{name!r}]")
    elif isinstance(value, SampleBatch):
        for name, column in dict(value).items():
            for at, leaf in tree.flatten_with_path(column) if not isinstance(column, list) else ():
                if isinstance(leaf, np.ndarray) and leaf.size and leaf.dtype != object:
                    yield f"{path}[{name!r}]{''.join(f'[{key!r}]' for key in at)}", leaf
