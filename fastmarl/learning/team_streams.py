"""Running episodes of a `TeamReplay`.

Axes in names: A slot of an agent in its group.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.columns import Columns

UNKNOWN = -1  # number of a decision that is not known yet


@dataclass
class Stream:
    """Decisions of a running episode.

    Attributes:
        env_t, number: Env step and number of the last decision, or -1 if there is none yet.
        open: Env step -> number, for decisions that wait for an action.
        first: Number of the first decision.
        finished: Whether the agent of each slot has finished, bool [A].
    """

    env_t: int = -1
    number: int = UNKNOWN
    open: dict[int, int] = field(default_factory=dict)
    first: int = UNKNOWN
    finished: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))


def finished_in(batch: Mapping[str, Any], running: Mapping[str, Stream], *, respawn: bool) -> dict[str, np.ndarray]:
    """Return episode id -> whether the agent of each slot has finished, bool [A], after this batch.

    Args:
        batch: Batch of a group from `aligned()`.
        running: Episode id -> stream before the batch.
        respawn: True if finished agents may return.

    Raises:
        BatchError: If an agent acts after it has finished and `respawn` is False.
    """
    acted = batch[Columns.ACTIVE].any(0)
    ended = (batch[Columns.TERMINATEDS] | batch[Columns.TRUNCATEDS]).any(0)
    finished = {id_: stream.finished for id_, stream in running.items()}
    for chunk, id_ in enumerate(batch[Columns.EPS_ID].tolist()):
        former = finished.get(id_, np.zeros(acted.shape[1], bool))
        if not respawn and (returned := np.flatnonzero(former & acted[chunk])).size:
            agent_id = batch[Columns.AGENT_ID][chunk, returned[0]]
            raise BatchError(f"agent {agent_id!r} acts again after it finished: use TeamReplay(..., respawn=True)")
        finished[id_] = former | ended[chunk]
    return finished
