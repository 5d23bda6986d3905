"""A replay of what teams decided, for off-policy learners of team values such as VDN.

Axes in names: T env step, E chunk, A agent's slot in its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Any

import numpy as np
import torch

from fastmarl.core.batches.team import rewards_by_arrival
from fastmarl.core.errors import BatchError
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns, Recorded, recorded_name
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.learning.tensors import to_tensors

UNKNOWN, NONE = -1, -2  # the decision after one: not known yet; none, since all agents have terminated
WRITTEN = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_MASK)
NEXT = "next"
OF_ACTED = {name: name for name in WRITTEN}
OF_LAST = {Columns.OBS: Columns.FINAL_OBS, Columns.ACTION_MASK: Columns.FINAL_ACTION_MASK}
FLAGS = ("observed", "acted", "awaited")  # by agent: it could act, its action is known, its action will be known


@public("fastmarl.learning")
class TeamReplay:
    """The newest decisions of a team, each with the one after it.

    A team is one decision maker of a semi-Markov decision process (Sutton, Precup and Singh 1999, "Between MDPs and
    semi-MDPs", section 3): it decides at every env step at which at least one agent acts. A decision's reward is all
    that became complete after it, up to the next one (see `fastmarl.batches.rewards_by_arrival()`), and one decision is
    one step of discounting, however many env steps it takes. Only agents that act at an env step take part in the
    decision and in its value; those that wait, have died, or have not joined don't. So for VDN (Sunehag et al. 2018)
    the sum of the values of "actions" over "active" has as its target

        rewards + gamma * (sum of the greatest values of "new_obs" over "new_active"),

    where "new_active" has no agent if all have terminated. If all agents act at every step, this is VDN's equation.

    Actions of agents that wait at the end of a call arrive with a later one; the decision is drawn from then on. A
    truncated agent takes part in the decision at its last observation, but as in any other cut, only as a later value.

    Args:
        capacity: Number of decisions that are kept.
        seed: Seed of the draws.
    """

    def __init__(self, capacity: int, seed: int = 0):
        self._capacity, self._rng = capacity, np.random.default_rng(seed)
        self._n = 0  # number of decisions so far; decision i is in row i % capacity
        self._columns: dict[str, Any] = {}  # name -> [capacity, ...]
        self._running: dict[str, _Stream] = {}  # by episode id
        self._ready = np.zeros(0, np.int64)  # rows that can be drawn

    def __len__(self) -> int:
        """Number of decisions that can be drawn."""
        return len(self._ready)

    def add(self, batch: Mapping[str, Any]) -> None:
        """Add a group's batch from `aligned()`, with `groups` that are dicts, so that slots don't change."""
        batch = dict(batch)
        continues, final_t = batch[Columns.CONTINUES], batch[Columns.FINAL_T]
        waits = continues & ~batch[Columns.TRUNCATEDS].any(0)
        t, e, a = np.nonzero(batch[Columns.ACTIVE])
        chunk, slot = np.nonzero(continues)
        is_decision = np.zeros((len(batch[Columns.ACTIVE]) + 1, len(continues)), bool)
        is_decision[t, e] = is_decision[final_t[chunk, slot], chunk] = True
        self._make_columns(batch)
        first = self._n
        former = [self._running.get(id_, _Stream()) for id_ in batch[Columns.EPS_ID].tolist()]
        numbers, former = self._number(batch, is_decision, former)
        self._clear(first)
        # Last observations come first, as an episode may go on in another chunk of this batch.
        finals = numbers[final_t[chunk, slot], chunk]
        self._write(finals, slot, batch, (chunk, slot), acted=False, awaited=waits[chunk, slot])
        self._write(numbers[t, e], a, batch, (t, e, a), acted=True, awaited=False)
        self._pay(rewards_by_arrival(batch), numbers, former)
        self._settle(batch, numbers, former)

    def sample(self, n: int, device: torch.device | str = "cpu") -> dict[str, Any]:
        """Return n random decisions as tensors.

        Args:
            n: Number of decisions, drawn with replacement.
            device: Device of the tensors.

        Returns:
            "obs", "actions" [n, A, ...]; "active" bool [n, A], the agents that acted, others have zeros; "rewards" [n];
            "new_obs" [n, A, ...] and "new_active" bool [n, A], of the next decision; "terminateds" bool [n]: there is
            none, as all agents have terminated; and with masks apart from observations "action_mask" and
            "new_action_mask" [n, A, choices].

        Raises:
            BatchError: If there is no complete decision yet.
        """
        if not len(self):
            raise BatchError("the replay has no complete decision to draw")
        rows = self._ready[self._rng.integers(len(self._ready), size=n)]
        following = self._columns[NEXT][rows]
        terminateds = following == NONE
        next_rows = np.where(terminateds, 0, following) % self._capacity

        def taken(name: str) -> Any:
            return map_struct(lambda leaf: leaf[rows], self._columns[name])

        def taken_next(name: str) -> Any:
            return map_struct(lambda leaf: _without(leaf[next_rows], terminateds), self._columns[name])

        found = {name: taken(name) for name in self._columns if name not in (NEXT, *FLAGS)}
        found |= {"active": taken("acted"), "terminateds": terminateds, "new_active": taken_next("observed")}
        found |= {f"new_{name}": taken_next(name) for name in (Columns.OBS, Columns.ACTION_MASK) if name in found}
        return to_tensors(found, device=device)

    # Writing.

    def _make_columns(self, batch: dict[str, Any]) -> None:
        """Make the columns that are missing; masks may come later than the rest."""
        if (mask := recorded_name(Recorded.ACTION_MASK, batch)) in batch:
            batch[Columns.ACTION_MASK] = batch[mask]
        for name in WRITTEN:
            if name in batch and name not in self._columns:
                make = np.ones if name == Columns.ACTION_MASK else np.zeros
                self._columns[name] = map_struct(
                    lambda leaf, make=make: make((self._capacity, *leaf.shape[2:]), leaf.dtype), batch[name]
                )
        if Columns.REWARDS not in self._columns:
            self._columns |= {name: np.zeros((self._capacity, batch[Columns.ACTIVE].shape[2]), bool) for name in FLAGS}
            self._columns |= {Columns.REWARDS: np.zeros(self._capacity), NEXT: np.full(self._capacity, UNKNOWN)}

    def _number(
        self, batch: Mapping[str, Any], is_decision: np.ndarray, former: list[_Stream]
    ) -> tuple[np.ndarray, list[_Stream]]:
        """Number the decisions [T + 1, E], with UNKNOWN elsewhere, and link each to the next.

        Returns:
            The numbers; and each chunk's stream before it, which may be that of an earlier chunk in the same batch.
        """
        numbers = np.full(is_decision.shape, UNKNOWN)
        before = []
        for chunk, (id_, begin) in enumerate(
            zip(batch[Columns.EPS_ID], batch[Columns.FIRST_ENV_T].tolist(), strict=True)
        ):
            stream = self._running.get(id_, former[chunk])
            before.append(stream)
            rows = np.flatnonzero(is_decision[:, chunk])
            is_new = rows + begin > stream.env_t
            for row in rows[~is_new].tolist():
                numbers[row, chunk] = stream.open.get(row + begin, UNKNOWN)
            new = rows[is_new]
            numbers[new, chunk] = np.arange(self._n, self._n + len(new))
            if len(new):
                self._n += len(new)
                last = int(new[-1])
                opened = dict(zip((new + begin).tolist(), numbers[new, chunk].tolist(), strict=True))
                stream = _Stream(last + begin, self._n - 1, {**stream.open, **opened})
            self._running[id_] = stream
        return numbers, before

    def _clear(self, first: int) -> None:
        """Empty the rows of decisions from number `first` on."""
        numbers = np.arange(max(first, self._n - self._capacity), self._n)
        rows = numbers % self._capacity
        for name in (*FLAGS, Columns.REWARDS):
            self._columns[name][rows] = 0
        for name in WRITTEN:
            for _, leaf in flatten_struct(self._columns.get(name, ())):
                leaf[rows] = 0
        self._columns[NEXT][rows] = UNKNOWN

    def _write(
        self,
        numbers: np.ndarray,
        slots: np.ndarray,
        batch: Mapping[str, Any],
        places: tuple,
        *,
        acted: bool,
        awaited: Any,
    ) -> None:
        """Write what agents observed, and did if `acted`, at these places of the batch."""
        kept = self._is_kept(numbers)
        rows, slots = numbers[kept] % self._capacity, slots[kept]
        sources = OF_ACTED if acted else OF_LAST
        for name, source in sources.items():
            if source in batch:
                leaves = zip(flatten_struct(self._columns[name]), flatten_struct(batch[source]), strict=True)
                for (_, leaf), (_, values) in leaves:
                    leaf[rows, slots] = values[places][kept]
            elif name in self._columns:
                self._columns[name][rows, slots] = True  # no mask came
        self._columns["observed"][rows, slots] = True
        self._columns["acted"][rows, slots] = acted
        self._columns["awaited"][rows, slots] = awaited if acted else awaited[kept]

    def _pay(self, arrived: np.ndarray, numbers: np.ndarray, former: list[_Stream]) -> None:
        """Add rewards [T + 1, E] to the last decision before each arrived."""
        since = np.array([stream.number for stream in former])
        is_new = numbers > since
        is_new &= numbers != UNKNOWN
        latest = np.maximum.accumulate(np.where(is_new, numbers, UNKNOWN), 0)
        latest = np.maximum(np.concatenate([np.full((1, len(since)), UNKNOWN), latest[:-1]]), since)
        pays = (arrived != 0) & self._is_kept(latest)
        np.add.at(self._columns[Columns.REWARDS], latest[pays] % self._capacity, arrived[pays])

    def _settle(self, batch: Mapping[str, Any], numbers: np.ndarray, former: list[_Stream]) -> None:
        """Link decisions, forget episodes that have ended, and find out which decisions are complete."""
        next_of = self._columns[NEXT]
        touched = [numbers[self._is_kept(numbers)]]
        for chunk, id_ in enumerate(batch[Columns.EPS_ID].tolist()):
            new = numbers[:, chunk][numbers[:, chunk] > former[chunk].number]
            chain = np.array([former[chunk].number, *new.tolist()])
            chain = chain[self._is_kept(chain)]
            next_of[chain[:-1] % self._capacity] = chain[1:]
            touched.append(chain)
            stream = self._running[id_]
            opened = self._open_of(stream)
            self._running[id_] = stream = _Stream(stream.env_t, stream.number, opened)
            if self._is_kept(stream.number):
                next_of[stream.number % self._capacity] = UNKNOWN if opened else NONE
        ids = dict.fromkeys(batch[Columns.EPS_ID].tolist())
        self._running = {id_: self._running[id_] for id_ in ids}
        rows = np.concatenate(touched) % self._capacity
        is_ready = np.zeros(min(self._n, self._capacity), bool)
        is_ready[self._ready] = True
        acted, awaited = self._columns["acted"][rows], self._columns["awaited"][rows]
        is_ready[rows] = acted.any(1) & ~awaited.any(1) & (next_of[rows] != UNKNOWN)
        self._ready = np.flatnonzero(is_ready)

    def _is_kept(self, numbers: Any) -> Any:
        return (numbers >= 0) & (numbers >= self._n - self._capacity)

    def _open_of(self, stream: _Stream) -> dict[int, int]:
        """Return those of the stream's open decisions that still wait for an action."""
        numbers = np.array([*stream.open.values()], np.int64)
        is_open = self._is_kept(numbers)
        is_open[is_open] = self._columns["awaited"][numbers[is_open] % self._capacity].any(1)
        return dict(compress(stream.open.items(), is_open.tolist()))

    # State.

    def get_state(self) -> dict[str, Any]:
        """Return everything as plain data, for checkpoints."""
        n = min(self._n, self._capacity)
        columns = {name: map_struct(lambda leaf: leaf[:n], column) for name, column in self._columns.items()}
        running = [[each.env_t, each.number, [*each.open.items()]] for each in self._running.values()]
        return {"columns": columns, "n": self._n, "ready": self._ready, "episode_ids": list(self._running),
                "running": running, "rng": self._rng.bit_generator.state}  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Args:
            state: Result of `get_state()` of a replay with the same capacity.
        """

        def whole(leaf: np.ndarray) -> np.ndarray:
            column = np.zeros((self._capacity, *leaf.shape[1:]), leaf.dtype)
            column[: len(leaf)] = leaf
            return column

        self._columns = {name: map_struct(whole, column) for name, column in state["columns"].items()}
        self._n, self._ready = int(state["n"]), np.asarray(state["ready"], np.int64)
        self._running = {
            id_: _Stream(env_t, number, {int(t): int(i) for t, i in opened})
            for id_, (env_t, number, opened) in zip(state["episode_ids"], state["running"], strict=True)
        }
        self._rng.bit_generator.state = state["rng"]


class _Stream:
    """The decisions of a running episode so far.

    Attributes:
        env_t, number: Env step and number of the last one; -1: there was none.
        open: Env step -> number, of those that wait for an agent's action.
    """

    def __init__(self, env_t: int = -1, number: int = UNKNOWN, opened: dict[int, int] | None = None):
        self.env_t, self.number, self.open = env_t, number, opened or {}


def _without(leaf: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Set these rows of a copy to zero."""
    leaf[rows] = 0
    return leaf
