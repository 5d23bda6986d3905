"""RLlib's FlattenObservations, applied to entire columns."""

from collections.abc import Hashable
from functools import partial
from typing import Any

import numpy as np
import tree
from gymnasium.spaces import Dict, Discrete, MultiDiscrete

from fastmarl.rllib.connectors.newest import Change, ColumnConnector, Newest
from fastmarl.rllib.store.layout import ObservationLayout

Parts = list[tuple[int, Any]]
"""(leaf index, space) pairs."""


class FlattenedColumns(ColumnConnector):
    """Flattens each observation into a float32 vector, one-hot encoding its discrete parts."""

    def __init__(self, piece: Any):
        super().__init__(piece)
        self._known: dict[tuple[ObservationLayout, Hashable], Parts] = {}
        self._kinds: list[Parts] = []  # distinct values of `_known`
        self._layouts: dict[int, ObservationLayout] = {}  # keyed by row length

    def rewrite_module(self, newest: Newest) -> Change | None:
        parts = self._common_parts(newest)
        flat = [_flat(newest.leaves[i], space, len(newest)) for i, space in parts]
        if not flat or any(part is None for part in flat):
            return None
        row = np.concatenate(flat, axis=1) if len(flat) > 1 else flat[0]  # type: ignore[arg-type]
        assert row is not None
        if row.shape[1] not in self._layouts:
            self._layouts[row.shape[1]] = ObservationLayout.of(row[0])
        return partial(newest.rewrite, self._layouts[row.shape[1]], [row])

    def _common_parts(self, newest: Newest) -> Parts:
        """Return the parts shared by all these agents, or an empty list if they differ."""
        if newest.layout.has_objects:
            return []
        parts: Parts | None = None
        for agent_id in dict.fromkeys(newest.agents):
            of_agent = self._known.get((newest.layout, agent_id))
            if of_agent is None:
                of_agent = self._known[newest.layout, agent_id] = self._one_of_its_kind(self._parts(agent_id, newest))
            if parts is not None and of_agent is not parts:
                return []
            parts = of_agent
        return parts or []

    def _one_of_its_kind(self, parts: Parts) -> Parts:
        """Return the first known object equal to `parts`, so that equal parts can be compared by identity."""
        for other in self._kinds:
            if other == parts:
                return other
        self._kinds.append(parts)
        return parts

    def _parts(self, agent_id: Hashable, newest: Newest) -> Parts:
        """Return the leaves of an agent and their spaces in RLlib order, or [] if RLlib does not flatten them."""
        piece, space = self.piece, self.piece.input_observation_space
        structs = piece._input_obs_base_struct
        if piece._multi_agent:
            if piece._agent_ids is not None and agent_id not in piece._agent_ids:
                return []
            if agent_id not in structs:
                return []
            space, structs = space[agent_id], structs[agent_id]
        places = newest.layout.nest(list(range(len(newest.leaves))))
        if isinstance(space, Dict) and piece._keys_to_remove:
            places = {key: place for key, place in places.items() if key not in piece._keys_to_remove}
        # RLlib pairs leaves and spaces by position; both are sorted by dict key.
        return list(zip(tree.flatten(places), tree.flatten(structs), strict=False))


def _flat(leaf: np.ndarray, space: Any, n: int) -> np.ndarray | None:
    """Flatten a leaf [n, ...] to float32 [n, k]; return None if RLlib would raise an error or differ."""
    if isinstance(space, Discrete):
        return _one_hot(leaf, int(space.n)) if leaf.shape == (n,) else None
    if isinstance(space, MultiDiscrete):
        if space.nvec.ndim != 1 or leaf.shape != (n, len(space.nvec)):
            return None
        parts = [_one_hot(leaf[:, i], int(size)) for i, size in enumerate(space.nvec)]
        return None if any(part is None for part in parts) else np.concatenate(parts, axis=1)  # type: ignore[arg-type]
    return leaf.reshape(n, -1).astype(np.float32)


def _one_hot(numbers: np.ndarray, depth: int) -> np.ndarray | None:
    """Return one-hot vectors, float32 [n, depth], or None if a number is not an integer in [0, depth)."""
    if numbers.dtype.kind not in "iu" or (numbers < 0).any() or (numbers >= depth).any():
        return None
    return (numbers[:, None] == np.arange(depth)).astype(np.float32)
