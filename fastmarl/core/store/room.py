"""Estimates how many rows a call needs, so that its blocks do not have to grow."""

from collections.abc import Sequence
from typing import NamedTuple

# Bytes; untouched memory only takes up address space.
MOST_RESERVED = 2**30  # per block, as a call of a million steps may be interrupted
MOST_IN_DOUBT = 64 * 2**20  # for rows that might, but probably will not, be needed
FIRST_EPISODES = 1000  # assumed steps per env in the first call for complete episodes
SLACK = 3  # extra rows per agent: one carried over, one after a reset, and one written ahead by batches


class Room(NamedTuple):
    """Capacity of a block: rows and final observations."""

    rows: int
    finals: int


class Expectation:
    """Estimates how many rows the calls of a runner need.

    Args:
        n_agents: Number of declared agents per env; 0 if undeclared.
        n_modules: Number of modules available to agents.
    """

    def __init__(self, n_agents: Sequence[int], n_modules: int):
        self.n_modules = n_modules
        self._n_envs = len(n_agents)
        self._most_agents = max(n_agents) if all(n_agents) else 0  # per env; 0: unknown
        self._steps: int | None = None
        self._of_agents = False
        self._seen: dict[int, Room] = {}  # per module: most rows and final observations in any call so far

    def begin_call(self, steps: int | None, *, of_agents: bool) -> None:
        """Set the number of env steps (or agent steps) of the next call; None if it depends on the episodes."""
        self._steps, self._of_agents = steps, of_agents

    def note(self, module: int, rows: int, finals: int) -> None:
        """Record the row counts of a module in a call."""
        before = self._seen.get(module, Room(0, 0))
        self._seen[module] = Room(max(rows, before.rows), max(finals, before.finals))

    def room(self, module: int, written: int, n_lanes: int, row_bytes: int) -> Room:
        """Estimate the capacity needed by the block of a module, given its current rows and lanes."""
        n_envs, most = self._n_envs, max(1, MOST_IN_DOUBT // max(1, row_bytes))
        if self._steps is None:
            unknown = min(most, self._most_agents * n_envs * FIRST_EPISODES)
            return self._seen.get(module, Room(unknown, unknown))
        steps = self._steps
        rows = written + SLACK * n_lanes
        if n_lanes:
            rows += steps if self._of_agents else n_lanes * -(-steps // n_envs)
        if self._most_agents:
            of_step = 1 if self._of_agents else self._most_agents
            of_all = written + SLACK * self._most_agents * n_envs + of_step * steps
            rows = of_all if self.n_modules == 1 else max(rows, min(of_all, most))
        rows = min(rows, max(1, MOST_RESERVED // max(1, row_bytes)))
        return Room(rows, min(rows, most))
