"""Resolution of simultaneous moves of robots in a warehouse, by the rules of the package `rware`.

A robot that wants to move targets the cell in front of it; any other robot targets its own cell. Robots whose targets
form a cycle of three or more all move, but two robots do not swap. Among the chains of robots leading to a free cell,
the longest chain moves, and the others stay.

Among chains of equal length, `rware` picks the first that networkx finds in a subgraph. The subgraph's cells are
in the order in which they were added to the full graph or, if it has less than half of the cells, in the iteration
order of a Python set, which follows from their hashes and can be reproduced here. This matches networkx 3.6 and CPython
3.8 or later.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

SMALLEST_TABLE = 8  # slots of the smallest CPython set
LINEAR_PROBES, PERTURB_SHIFT = 9, np.uint64(5)


class Aims(NamedTuple):
    """Target cells of the robots in a single env, with scratch space to determine which robots move.

    Attributes:
        steps: int64 [4], offsets from a cell to its neighbours.
        hash_C: uint64, Python `hash()` of (x, y) of each cell.
        target_A: int64, the cell in front of each robot that wants to move, or the current cell of other robots.
        moves_A: bool, True for robots that move.
        depth_A: int64, length of the longest chain behind a robot.
        rank_C: int64, position of a cell in the order of cells.
        order_N, table: int64, scratch space for the cells of a chain and for a set of them.
    """

    steps: np.ndarray
    hash_C: np.ndarray
    target_A: np.ndarray
    moves_A: np.ndarray
    depth_A: np.ndarray
    rank_C: np.ndarray
    order_N: np.ndarray
    table: np.ndarray


def new_aims(num_agents: int, steps: np.ndarray, hash_C: np.ndarray) -> Aims:
    """Allocate `Aims` for the robots of a single env."""
    longest = num_agents + 1  # cells of a chain: the cells of the robots and the free one
    table = SMALLEST_TABLE * (longest + 1)  # a set grows to at most eight slots per item
    counts = num_agents, num_agents, len(hash_C), longest, table
    target_A, depth_A, rank_C, order_N, slots = (np.zeros(count, np.int64) for count in counts)
    return Aims(steps, hash_C, target_A, np.zeros(num_agents, np.bool_), depth_A, rank_C, order_N, slots)


@njit(cache=True, nogil=True)
def count_followers(e, agent_at_EC, aims):
    """Write `aims.depth_A` of env e, and `aims.moves_A`, which is True for robots in a cycle of three or more.

    Args:
        agent_at_EC: int32, the robot in each cell, numbered from 1, or 0.
    """
    n_agents = len(aims.target_A)
    for a in range(n_agents):
        aims.moves_A[a] = False
        aims.depth_A[a] = 0
    for first in range(n_agents):
        a, length = first, 0
        while length < n_agents:  # increase the depth of the robots ahead
            length += 1
            ahead = agent_at_EC[e, aims.target_A[a]] - 1
            if ahead < 0 or ahead == a:
                length = n_agents
            elif ahead == first:
                aims.moves_A[first] = length > 2
                length = n_agents
            else:
                aims.depth_A[ahead] = max(aims.depth_A[ahead], length)
                a = ahead


@njit(cache=True, nogil=True)
def choose_movers(e, cell_EA, agent_at_EC, aims):
    """Write True to `aims.moves_A` for the longest chain to each free cell; call `count_followers()` first.

    Among chains of equal length, the first one by `aims.rank_C` is chosen.

    Args:
        cell_EA: int64, cells of the robots.
        agent_at_EC: int32, the robot in each cell, numbered from 1, or 0.

    Returns:
        True if there were chains of equal length.
    """
    is_tied = False
    for first in range(cell_EA.shape[1]):
        cell = aims.target_A[first]
        while cell >= 0 and (agent_at_EC[e, cell] == 0 or cell != aims.target_A[first]):  # free, or about to be
            mover = -1
            for i in range(len(aims.steps)):
                a = agent_at_EC[e, cell - aims.steps[i]] - 1
                if a < 0 or aims.target_A[a] != cell:
                    continue
                is_equal = mover >= 0 and aims.depth_A[a] == aims.depth_A[mover]
                is_tied |= is_equal
                is_before = is_equal and aims.rank_C[cell_EA[e, a]] < aims.rank_C[cell_EA[e, mover]]
                if mover < 0 or is_before or aims.depth_A[a] > aims.depth_A[mover]:
                    mover = a
            aims.moves_A[mover] = True
            cell = cell_EA[e, mover] if aims.depth_A[mover] > 0 else -1
    return is_tied


@njit(cache=True, nogil=True)
def rank_cells(e, cell_EA, agent_at_EC, aims):
    """Write `aims.rank_C`, the networkx order of cells linked by robot targets."""
    n_agents = cell_EA.shape[1]
    n_cells = _rank_as_added(e, cell_EA, aims)
    for a in range(n_agents):
        root = aims.target_A[a]
        if agent_at_EC[e, root] > 0:
            continue
        first, n_linked = n_agents, np.int64(1)
        for b in range(n_agents):
            if _end_of_chain(e, b, agent_at_EC, aims) == root:
                first = min(b, first)
                n_linked += 1
        if 2 * n_linked < n_cells:
            _search_breadth_first(e, cell_EA[e, first], n_linked, cell_EA, agent_at_EC, aims)
            for _ in range(2):  # the component is a set, and the subgraph is another set made from it
                order_as_set(aims.order_N, n_linked, aims.hash_C, aims.table)
            for i in range(n_linked):
                aims.rank_C[aims.order_N[i]] = i


@njit(cache=True, nogil=True)
def _rank_as_added(e, cell_EA, aims):
    """Rank all cells in the graph in the order of insertion, and return their number."""
    for a in range(cell_EA.shape[1]):
        aims.rank_C[cell_EA[e, a]] = aims.rank_C[aims.target_A[a]] = -1
    n_cells = 0
    for a in range(cell_EA.shape[1]):
        for cell in (cell_EA[e, a], aims.target_A[a]):
            if aims.rank_C[cell] < 0:
                aims.rank_C[cell] = n_cells
                n_cells += 1
    return n_cells


@njit(cache=True, nogil=True)
def _end_of_chain(e, a, agent_at_EC, aims):
    """Return the cell at which the chain of a robot ends, or a cell of its cycle."""
    cell = aims.target_A[a]
    for _ in range(len(aims.target_A)):
        ahead = agent_at_EC[e, cell] - 1
        if ahead >= 0:
            cell = aims.target_A[ahead]
    return cell


@njit(cache=True, nogil=True)
def _search_breadth_first(e, first, n_cells, cell_EA, agent_at_EC, aims):
    """Write the cells linked to `first`, in either direction, to `aims.order_N` in breadth-first order."""
    aims.order_N[0], n_found = first, 1
    for i in range(n_cells):
        here = aims.order_N[i]
        aims.rank_C[here] = -1  # visited; the graph has no cycle, so each cell is reached from only one neighbour
        own = agent_at_EC[e, here] - 1
        if own >= 0 and aims.rank_C[aims.target_A[own]] >= 0:
            aims.order_N[n_found] = aims.target_A[own]
            n_found += 1
        for a in range(cell_EA.shape[1]):
            if aims.target_A[a] == here and aims.rank_C[cell_EA[e, a]] >= 0:
                aims.order_N[n_found] = cell_EA[e, a]
                n_found += 1


@njit(cache=True, nogil=True)
def order_as_set(cell_N, n_cells, hash_C, table):
    """Reorder cells, in place, to the iteration order of a CPython set to which they were added in the given order.

    Args:
        cell_N: int64; the first `n_cells` cells, all different and fewer than 50,000, are reordered.
        n_cells: Number of cells.
        hash_C: uint64, the hash of each cell.
        table: int64, scratch space for the set: `SMALLEST_TABLE` slots, and as many again for each cell.
    """
    size, is_full = SMALLEST_TABLE, True
    while is_full:  # rehash into a larger table, in the order of the previous one
        for slot in range(size):
            table[slot] = -1
        n, is_full = 0, False
        while n < n_cells and not is_full:
            perturb = hash_C[cell_N[n]]
            start, probe = np.int64(perturb) & (size - 1), 0
            while table[start + probe] >= 0:
                if probe < LINEAR_PROBES and start + LINEAR_PROBES < size:
                    probe += 1
                else:
                    perturb >>= PERTURB_SHIFT
                    start, probe = np.int64(np.uint64(start * 5 + 1) + perturb) & (size - 1), 0
            table[start + probe] = cell_N[n]
            n += 1
            is_full = n * 5 >= (size - 1) * 3
        n = 0
        for slot in range(size):
            if table[slot] >= 0:
                cell_N[n] = table[slot]
                n += 1
        while is_full and size <= 4 * n:
            size *= 2
