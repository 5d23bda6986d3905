"""What a cut leaves of an episode's agents, and in what order: RLlib rebuilds its dicts from the lookback window."""

from collections.abc import Hashable

import numpy as np

from fastmarl.native import _store
from fastmarl.rllib.recording.records import RLlibRecord
from fastmarl.rllib.recording.store import RLlibStore

ROW, COUNT, DONE, MODULE = 0, 1, 6, 7  # of what Scatter.lanes_now() tells


class Window:
    """The lookback window of the chunk that follows upon a cut.

    Args:
        store: what was recorded.
        record: the episode, as it is at the end of a chunk.
        horizon: `episode_lookback_horizon`.
        hanging: lanes that have acted and wait.

    Attributes:
        lookback: env steps; more than the horizon if a waiting agent's last observation is further back. RLlib fills up
            what lies before the episode.
        order: agents of the next chunk in RLlib's order; those that ended within the window included.
        map_order: the same agents in the order of RLlib's time maps: those at the window's begin, then others.
        ended: of these, those that have ended -> env steps of their observations in the window, as RLlib's map has them
            in the next chunk: it has no entries for the steps after the last of them, which seems to be at the cut.
        dropped: agents that ended and have one observation in the window, of which RLlib removes every trace.
    """

    def __init__(self, store: RLlibStore, record: RLlibRecord, horizon: int, hanging: set[int]):
        self._store = store
        self._record = record
        self._env_t = store.table.envs[record.env_index].env_t
        self._observed_at: dict[Hashable, list[int]] = {}
        self.lookback = horizon
        for agent_id, lane in record.lane_of.items():
            if lane in hanging:
                self.lookback = max(self.lookback, self._needed(agent_id, lane, horizon))
        self.dropped: set[Hashable] = set()
        self.ended: dict[Hashable, list[int]] = {}
        self.order = self._order()

    def _needed(self, agent_id: Hashable, lane: int, horizon: int) -> int:
        """How far RLlib looks back for a waiting agent: to its last observation at least `horizon` steps back."""
        for env_t in reversed(self._times(agent_id, lane)):
            if (back := self._env_t - env_t + 1) >= max(horizon, 1):
                return back - 1
        return horizon

    def _order(self) -> list[Hashable]:
        """Order of first appearance in the window; agents that ended and appear only once are dropped."""
        since = self._env_t - self.lookback
        seen: list[tuple[int, int, Hashable]] = []
        live = self._live_lanes()
        for place, agent_id in enumerate(self._record.order):
            if agent_id in live:
                seen.append((self._first_since(live[agent_id], since), place, agent_id))
                continue
            lane = self._record.lane_of.get(agent_id)
            times = self._record.ended_before[agent_id] if lane is None else self._times(agent_id, lane)
            times = [env_t for env_t in times if env_t >= since]
            if len(times) == 1:
                self.dropped.add(agent_id)
            elif times:
                self.ended[agent_id] = [env_t + self._env_t - times[-1] for env_t in times]
                seen.append((times[0], place, agent_id))
        seen.sort(key=lambda entry: entry[:2])
        at_begin = dict.fromkeys(agent_id for env_t, _, agent_id in seen if env_t == since)
        later = {agent_id for env_t, _, agent_id in seen if env_t > since}
        known = set(dict.fromkeys(self._record.order).keys())  # in the order of RLlib's set
        self.map_order = [*at_begin, *(agent_id for agent_id in known if agent_id in later)]
        return [agent_id for _, _, agent_id in seen]

    def _live_lanes(self) -> dict[Hashable, list[int]]:
        """Agents of the chunk that have not ended -> their lanes' numbers, see Scatter.lanes_now()."""
        lanes = self._record.lane_of
        now = self._store.scatter.lanes_now(list(lanes.values())).tolist()
        return {agent_id: of_lane for agent_id, of_lane in zip(lanes, now, strict=True) if not of_lane[DONE]}

    def _first_since(self, lane_now: list[int], since: int) -> int:
        """A lane's first observation from env step `since` on."""
        row, count, module = lane_now[ROW], lane_now[COUNT], lane_now[MODULE]
        block = self._store.blocks[module]
        first = int(block.env_t_R[row])
        for _ in range(count - 1):
            row = int(block.prev_R[row])
            if block.env_t_R[row] < since:
                break
            first = int(block.env_t_R[row])
        return first

    def _times(self, agent_id: Hashable, lane: int) -> list[int]:
        """Env steps of the lane's observations in the chunk, as RLlib's map has them counted from its end."""
        if agent_id not in self._observed_at:
            table = self._store.table
            block = self._store.blocks[table.module_L[lane]]
            rows, _ = _store.chain(block.prev_R, int(table.row_L[lane]), int(table.count_L[lane]))
            env_ts = np.asarray(block.env_t_R)[rows]
            if table.final_L[lane] >= 0:
                # The extra entry for an agent that ended unobserved moves its earlier ones back by one.
                times = [*(env_ts - (lane in self._record.unseen)).tolist(), int(table.end_env_t_L[lane])]
            else:
                times = env_ts.tolist()
            self._observed_at[agent_id] = times
        return self._observed_at[agent_id]
