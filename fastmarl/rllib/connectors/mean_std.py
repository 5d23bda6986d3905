"""RLlib's MeanStdFilter on entire columns. The RLlib piece keeps the statistics, in one filter per agent id."""

from collections.abc import Hashable
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import tree

from fastmarl.core.kernels.mean_std import push_rows
from fastmarl.rllib.connectors.newest import Change, ColumnConnector, Newest

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class FilteredColumns(ColumnConnector):
    """Normalises observations like RLlib's MeanStdFilter.

    Rows are pushed one by one in RLlib order, because each is scaled by the statistics of the rows up to it.
    """

    def __init__(self, piece: Any):
        super().__init__(piece)
        self._places: dict[Any, dict[Hashable, Places]] = {}  # observed agents -> agent id -> observations

    def rewrite(self, newest: list[Newest]) -> Change | None:
        if any(not each.layout.is_array or each.leaves[0].dtype not in FLOATS for each in newest):
            return None
        if self.piece._filters is None:
            self.piece._init_new_filters()
        places = self._places_of(newest)
        for agent_id, own in places.items():
            shapes = {newest[i].leaves[0].shape[1:] for i, _ in own}
            if len(shapes) > 1 or not _fits(self.piece._filters.get(agent_id), *shapes):
                return None
        return partial(self._filter, newest, places)

    def _places_of(self, newest: list[Newest]) -> dict[Hashable, "Places"]:
        """Group the observations by agent id and order them by env, as RLlib pushes them."""
        key = tuple(tuple(each.who) for each in newest)
        found = self._places.get(key)
        if found is None:
            who = [(who, i, k) for i, each in enumerate(newest) for k, who in enumerate(each.who)]
            single = dict[Hashable, list[tuple[int, int]]]()
            for (_, agent_id), i, k in sorted(who, key=lambda one: one[0][0]):
                single.setdefault(agent_id, []).append((i, k))
            found = {agent_id: _in_runs(own) for agent_id, own in single.items()}
            self._places = {key: found}
        return found

    def _filter(self, newest: list[Newest], places: dict[Hashable, "Places"]) -> None:
        values = [each.leaves[0].reshape(len(each), -1) for each in newest]
        scaled, updates = [np.empty_like(each) for each in values], bool(self.piece._update_stats)
        for agent_id, own in places.items():
            of_agent = self.piece._filters[agent_id]
            scaling = updates, bool(of_agent.demean), bool(of_agent.destd), float(of_agent.clip or 0.0)
            for i, chosen in own:
                _push(of_agent.running_stats, values[i], chosen, scaled[i], scaling)
                if updates:
                    _push(of_agent.buffer, values[i], chosen, values[i][:0], scaling)
        for each, result in zip(newest, scaled, strict=True):
            each.rewrite(each.layout, [result.reshape(each.leaves[0].shape)])


Places = list[tuple[int, np.ndarray]]
"""Runs of observations: (module index, int64 positions in the latest observations of the module)."""


def _in_runs(places: list[tuple[int, int]]) -> Places:
    """Group consecutive places of the same module into runs."""
    return [(i, np.array([k for _, k in run], np.int64)) for i, run in groupby(places, key=lambda place: place[0])]


def _fits(of_agent: Any, shape: tuple[int, ...]) -> bool:
    """Return True if the filter of an agent consists of plain float64 arrays of this shape."""
    if of_agent is None or not of_agent.demean or tree.is_nested(of_agent.running_stats):
        return False
    return all(
        array.shape == shape and array.dtype == np.float64 and array.flags.c_contiguous and array.flags.writeable
        for stats in (of_agent.running_stats, of_agent.buffer)
        for array in _arrays(stats)
    )


def _arrays(stats: Any) -> tuple[np.ndarray, ...]:
    return stats.mean_array, stats.mean_delta_array, stats.sum_sq_diff_array, stats.sum_sq_diff_delta_array


def _push(stats: Any, values: np.ndarray, chosen: np.ndarray, out: np.ndarray, scaling: tuple) -> None:
    """Push the chosen rows into an RLlib RunningStat, and write the normalised rows to `out` unless it is empty."""
    mean, delta, squares, delta_squares = (array.reshape(-1) for array in _arrays(stats))
    n_pushes = push_rows(values, chosen, stats.num_pushes, mean, delta, squares, delta_squares, out, scaling)
    stats.num_pushes_delta += n_pushes - stats.num_pushes
    stats.num_pushes = n_pushes
