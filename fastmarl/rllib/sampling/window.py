"""Computes the agents of an episode after a cut and their order: RLlib rebuilds its dicts from the lookback window."""

from collections.abc import Hashable

from fastmarl.rllib.store.records import RLlibRecord
from fastmarl.rllib.store.store import RLlibStore


class Window:
    """The lookback window of the chunk after a cut.

    Args:
        store: The store of all rows.
        record: The episode at the end of a chunk.
        horizon: `episode_lookback_horizon`.
        hanging: Lanes of agents waiting for an observation after acting.

    Attributes:
        lookback: Number of env steps, which exceeds the horizon if the last observation of a waiting agent is further
            back. RLlib pads steps before the beginning of the episode.
        order: Agents of the next chunk in RLlib order, including agents that ended within the window.
        map_order: The same agents in the order of the RLlib time maps: agents at the start of the window first.
        ended: Ended agent in `order` -> env steps of its observations in the window, as in the RLlib time map of the
            next chunk. That map has no entries after the last observation, which therefore moves to the cut.
        dropped: Ended agents with a single observation in the window; RLlib removes them altogether.
    """

    def __init__(self, store: RLlibStore, record: RLlibRecord, horizon: int, hanging: set[int]):
        self._store = store
        self._record = record
        self._env_t = store.table.envs[record.env_index].env_t
        # A module with recurrent state may have one more row, which is not in the RLlib map (47).
        self._first_env_t = record.env_t_started - record.lookback
        self.lookback = horizon
        for lane in record.lane_of.values():
            if lane in hanging:
                self.lookback = max(self.lookback, self._needed(lane, horizon))
        self.dropped: set[Hashable] = set()
        self.ended: dict[Hashable, list[int]] = {}
        self.order = self._order()

    def _needed(self, lane: int, horizon: int) -> int:
        """Return the lookback that reaches the latest observation of a waiting agent at or before the horizon."""
        for env_t in reversed(self._times(lane)):
            if (back := self._env_t - env_t + 1) >= max(horizon, 1):
                return back - 1
        return horizon

    def _order(self) -> list[Hashable]:
        """Order agents by first appearance in the window, and drop ended agents that appear only once."""
        since = self._env_t - self.lookback
        first_env_t = max(since, self._first_env_t)
        seen: list[tuple[int, int, Hashable]] = []
        live = self._store.table.envs[self._record.env_index].lane_of
        for place, agent_id in enumerate(self._record.order):
            if agent_id in live:
                seen.append((self._first_since(live[agent_id], first_env_t), place, agent_id))
                continue
            lane = self._record.lane_of.get(agent_id)
            times = self._record.ended_before[agent_id] if lane is None else self._times(lane)
            times = [env_t for env_t in times if env_t >= since]
            if len(times) == 1:
                self.dropped.add(agent_id)
            elif times:
                self.ended[agent_id] = [env_t + self._env_t - times[-1] for env_t in times]
                seen.append((times[0], place, agent_id))
        seen.sort()  # does not compare agent ids, since positions differ
        at_begin = dict.fromkeys(agent_id for env_t, _, agent_id in seen if env_t == since)
        later = {agent_id for env_t, _, agent_id in seen if env_t > since}
        known = set(dict.fromkeys(self._record.order).keys())  # in the order of the set in RLlib
        self.map_order = [*at_begin, *(agent_id for agent_id in known if agent_id in later)]
        return [agent_id for _, _, agent_id in seen]

    def _first_since(self, lane: int, since: int) -> int:
        """Return the env step of the first observation of a lane at or after env step `since`."""
        table = self._store.table
        row, block = table.row_L[lane], self._store.blocks[table.module_L[lane]]
        first = int(block.env_t_R[row])
        for _ in range(table.count_L[lane] - 1):
            row = int(block.prev_R[row])
            if (env_t := int(block.env_t_R[row])) < since:
                break
            first = env_t
        return first

    def _times(self, lane: int) -> list[int]:
        """Return the env steps of the observations of the lane in the chunk, as in the RLlib time map."""
        table = self._store.table
        block = self._store.blocks[table.module_L[lane]]
        rows = self._store.rows_of(lane)
        env_ts = block.env_t_R[rows]
        env_ts = env_ts[env_ts >= self._first_env_t]
        if table.final_L[lane] < 0:
            return env_ts.tolist()
        # An extra entry for an agent that ended unobserved shifts its earlier ones back by one.
        return [*(env_ts - (lane in self._record.unseen)).tolist(), int(table.end_env_t_L[lane])]
