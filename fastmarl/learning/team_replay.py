"""Replay buffer of team decisions, for off-policy learners of team values such as VDN.

Axes in names: T env step, E chunk, A slot of an agent in its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from typing import Any

import numpy as np
import torch

from fastmarl.core.batches.team import last_observations, rewards_by_arrival
from fastmarl.core.errors import BatchError, CheckpointError, ConfigError
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns, Recorded, recorded_name
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.learning.team_streams import UNKNOWN, Stream, finished_in
from fastmarl.learning.tensors import to_tensors

NONE = -2  # as the next decision: there is none, since all agents have terminated
WRITTEN = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_MASK)
NEXT = "next"
OF_ACTED = {name: name for name in WRITTEN}
# Per agent: it could act, its action is known, its action will be known, it decides no more in this trajectory.
FLAGS = ("observed", "acted", "awaited", "ended")


@public("fastmarl.learning")
class TeamReplay:
    """Replay buffer with the latest decisions of a team, each with its successor.

    A team is the single decision maker of a semi-Markov decision process (Sutton, Precup and Singh 1999, "Between MDPs
    and semi-MDPs", section 3): it decides at every env step at which at least one agent acts. The reward of a decision
    is the sum of all rewards that arrive after it, up to the next decision (see
    `fastmarl.batches.rewards_by_arrival()`), and each decision is one discount step, regardless of its number of env
    steps. Only agents acting at an env step take part in the decision and its value, not agents that wait, have died,
    or have not joined. For VDN (Sunehag et al. 2018), the sum of the values of "actions" over "active" is therefore
    trained towards

        rewards + gamma * (sum of the maximum values of "new_obs" over "new_active"),

    where "new_active" contains no agent if all have terminated. If all agents act at every step, this is the equation
    of VDN.

    If an agent waits at the end of a call, its action arrives in a later call; only then can the decision be sampled.
    The last decision can be sampled once no agent can join or return, at the latest when the episode is done.
    The last observation of a truncated agent contributes only its value to the target, as at any other cut.

    Args:
        capacity: Number of decisions to keep.
        seed: Seed for sampling.
        respawn: As in `EnvRunnerConfig`: True if finished agents may return.

    Raises:
        ConfigError: If the capacity is less than 2, since each decision is sampled with its successor.
    """

    def __init__(self, capacity: int, seed: int = 0, *, respawn: bool = False):
        if capacity < 2:
            raise ConfigError(f"capacity must be at least 2 decisions, got {capacity}")
        self._capacity, self._rng, self._respawn = capacity, np.random.default_rng(seed), respawn
        self._n = 0  # number of decisions added; decision i is in row i % capacity
        self._columns: dict[str, Any] = {}  # name -> [capacity, ...]
        self._running: dict[str, Stream] = {}  # keyed by episode id
        self._is_ready = np.zeros(capacity, bool)  # per row: it can be sampled
        self._ready = np.zeros(0, np.int64)  # rows available for sampling
        self._ended = np.zeros(0, np.int64)  # first decisions of complete finished episodes

    def __len__(self) -> int:
        """Number of decisions that can be sampled."""
        return len(self._ready)

    @property
    def num_episodes(self) -> int:
        """Number of complete episodes available for sampling."""
        return len(self._ended)

    def add(self, batch: Mapping[str, Any]) -> None:
        """Add a group's batch from `aligned()`, which must get dicts as `groups`, so that slots do not change.

        Raises:
            BatchError: If this batch has an "env_state" and earlier batches did not, or vice versa; or an agent acts
                after it has finished and `respawn` is False.
        """
        batch = dict(batch)
        finished = finished_in(batch, self._running, respawn=self._respawn)
        t, e, a = np.nonzero(batch[Columns.ACTIVE])
        lasts = last_observations(batch)
        is_decision = np.zeros((len(batch[Columns.ACTIVE]) + 1, len(batch[Columns.SEQ_LENS])), bool)
        is_decision[t, e] = True
        for last in lasts:
            is_decision[last.t, last.e] = True
        self._make_columns(batch)
        first = self._n
        numbers, former = self._number(batch, is_decision)
        self._clear(first)
        # Last observations are written first, as an episode may continue in another chunk of this batch.
        for last in lasts:
            sources = {Columns.OBS: last.obs, Columns.ACTION_MASK: last.action_mask}
            awaited = last.awaited
            self._write(numbers[last.t, last.e], last.a, batch, (last.e, last.a), sources, awaited, ~awaited)
        terminated = batch[Columns.TERMINATEDS][t, e, a]
        self._write(numbers[t, e], a, batch, (t, e, a), OF_ACTED, np.zeros_like(terminated), terminated)
        if Columns.ENV_STATE in batch:
            places = np.nonzero(self._is_kept(numbers))
            self._columns[Columns.ENV_STATE][numbers[places] % self._capacity] = batch[Columns.ENV_STATE][places]
        self._pay(rewards_by_arrival(batch), numbers, former)
        self._settle(batch, numbers, former, finished)

    def sample(self, n: int, length: int = 1, device: torch.device | str = "cpu") -> dict[str, Any]:
        """Return n random decisions and their successors as tensors.

        Args:
            n: Number of sequences. Their first decisions are sampled with replacement.
            length: T, number of decisions in a sequence; one more decision follows, which is used only for its value.
            device: Device of the tensors.

        Returns:
            "obs" [n, T + 1, A, ...]; "actions" [n, T, A]; "active" bool [n, T, A], the acting agents; "rewards" [n, T];
            "new_active" bool [n, T, A], the agents in the next decision; "terminateds" bool [n, T], True if there is no
            next decision because all agents have terminated; "loss_mask" bool [n, T], False after the end of an episode
            and for incomplete decisions, which recurrent modules should still see; and if recorded, "env_state"
            [n, T + 1, ...] and, if outside observations, "action_mask" [n, T + 1, A, choices]. Missing entries are
            zeros. If agents respawned, "trajectory" int64 [n, T + 1, A] is the number of trajectories of the agent that
            ended before in the sequence: recurrent modules start each with an initial state.

        Raises:
            BatchError: If there is no complete decision yet, or `n` or `length` is less than 1.
        """
        if not len(self):
            raise BatchError("the replay has no complete decision to sample")
        if n < 1 or length < 1:
            raise BatchError(f"n and length must be at least 1, got {n} and {length}")
        return self._sequences(self._ready[self._rng.integers(len(self._ready), size=n)], length, device)

    def sample_episodes(self, n: int, device: torch.device | str = "cpu") -> dict[str, Any]:
        """Return n random episodes, sampled with replacement from the complete finished episodes.

        Args:
            n: Number of episodes.
            device: Device of the tensors.

        Returns:
            As in `sample()`, where T is the number of decisions in the longest sampled episode.

        Raises:
            BatchError: If there is no complete episode, or `n` is less than 1.
        """
        if n < 1:
            raise BatchError(f"n must be at least 1, got {n}")
        if not self.num_episodes:
            raise BatchError(f"the replay has no complete episode to sample; it keeps {self._capacity:,} decisions")
        first = self._ended[self._rng.integers(self.num_episodes, size=n)]
        return self._sequences(first % self._capacity, None, device)

    def _sequences(self, starts: np.ndarray, length: int | None, device: torch.device | str) -> dict[str, Any]:
        """Return the sequences that start in these rows, with this length or, if it is None, until all have ended."""
        in_order, is_in_order = [starts], [np.ones(len(starts), bool)]
        is_last: list[np.ndarray] = []
        while is_in_order[-1].any() if length is None else len(is_last) < length:
            following = self._columns[NEXT][in_order[-1]]
            is_last.append(is_in_order[-1] & (following == NONE))
            is_in_order.append(is_in_order[-1] & (following >= 0))
            in_order.append(np.where(is_in_order[-1], following % self._capacity, 0))
        rows, is_there, terminateds = (np.stack(each, 1) for each in (in_order, is_in_order, is_last))
        is_ready = self._is_ready[rows[:, :-1]] & is_there[:, :-1]
        if length is None:
            n_steps = 1 + int(is_ready.any(0).nonzero()[0].max(initial=0))  # without the step of a last observation
            rows, is_there = rows[:, : n_steps + 1], is_there[:, : n_steps + 1]
            terminateds, is_ready = terminateds[:, :n_steps], is_ready[:, :n_steps]
        has_gaps = not is_there.all()

        def taken(leaf: np.ndarray) -> np.ndarray:
            found = leaf[rows]
            if has_gaps:
                found[~is_there] = 0
            return found

        names = [name for name in (*WRITTEN, Columns.ENV_STATE) if name in self._columns]
        found = {name: map_struct(taken, self._columns[name]) for name in names}
        found[Columns.ACTIONS] = map_struct(lambda leaf: leaf[:, :-1], found[Columns.ACTIONS])
        observed, ended = (taken(self._columns[name]) for name in ("observed", "ended"))
        found |= {"active": taken(self._columns["acted"])[:, :-1], "new_active": observed[:, 1:],
                  Columns.REWARDS: self._columns[Columns.REWARDS][rows[:, :-1]] * is_ready,
                  "terminateds": terminateds & is_ready, Columns.LOSS_MASK: is_ready}  # fmt: skip
        if ended[:, :-1].any():
            earlier = np.cumsum(ended, 1) - ended  # trajectories that ended before
            if (earlier * observed).any():
                found["trajectory"] = earlier * observed
        return to_tensors(found, device=device)

    # Writing.

    def _make_columns(self, batch: dict[str, Any]) -> None:
        """Create missing columns; action masks may first appear in a later batch than the rest."""
        if (mask := recorded_name(Recorded.ACTION_MASK, batch)) in batch:
            batch[Columns.ACTION_MASK] = batch[mask]
        if self._columns and (Columns.ENV_STATE in batch) != (Columns.ENV_STATE in self._columns):
            raise BatchError(f"{Columns.ENV_STATE!r} must be in all of the batches or in none")
        for name in (*WRITTEN, Columns.ENV_STATE):
            if name in batch and name not in self._columns:
                make = np.ones if name == Columns.ACTION_MASK else np.zeros
                self._columns[name] = map_struct(
                    lambda leaf, make=make: make((self._capacity, *leaf.shape[2:]), leaf.dtype), batch[name]
                )
        if Columns.REWARDS not in self._columns:
            self._columns |= {name: np.zeros((self._capacity, batch[Columns.ACTIVE].shape[2]), bool) for name in FLAGS}
            self._columns |= {Columns.REWARDS: np.zeros(self._capacity), NEXT: np.full(self._capacity, UNKNOWN)}

    def _number(self, batch: Mapping[str, Any], is_decision: np.ndarray) -> tuple[np.ndarray, list[Stream]]:
        """Number the decisions.

        Returns:
            The numbers [T + 1, E], UNKNOWN where there is no decision; and the stream before each chunk, possibly from
            an earlier chunk in the same batch.
        """
        numbers = np.full(is_decision.shape, UNKNOWN)
        before = []
        for chunk, (id_, begin) in enumerate(
            zip(batch[Columns.EPS_ID], batch[Columns.FIRST_ENV_T].tolist(), strict=True)
        ):
            stream = self._running.get(id_, Stream())
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
                first = int(numbers[new[0], chunk]) if stream.first == UNKNOWN else stream.first
                stream = Stream(last + begin, self._n - 1, {**stream.open, **opened}, first)
            self._running[id_] = stream
        return numbers, before

    def _clear(self, first: int) -> None:
        """Clear the rows of decision `first` and all later ones."""
        numbers = np.arange(max(first, self._n - self._capacity), self._n)
        rows = numbers % self._capacity
        for name in (*FLAGS, Columns.REWARDS):
            self._columns[name][rows] = 0
        for name in WRITTEN:
            for _, leaf in flatten_struct(self._columns.get(name, ())):
                leaf[rows] = 0
        self._columns[NEXT][rows] = UNKNOWN
        self._is_ready[rows] = False

    def _write(
        self,
        numbers: np.ndarray,
        slots: np.ndarray,
        batch: Mapping[str, Any],
        places: tuple,
        sources: Mapping[str, str],
        awaited: np.ndarray,
        ended: np.ndarray,
    ) -> None:
        """Write the columns at these positions of the batch; `sources` maps our columns to those of the batch."""
        kept = self._is_kept(numbers)
        rows, slots = numbers[kept] % self._capacity, slots[kept]
        for name, source in sources.items():
            if source in batch:
                leaves = zip(flatten_struct(self._columns[name]), flatten_struct(batch[source]), strict=True)
                for (_, leaf), (_, values) in leaves:
                    leaf[rows, slots] = values[places][kept]
            elif name in self._columns:
                self._columns[name][rows, slots] = True  # no mask was received
        self._columns["observed"][rows, slots] = True
        self._columns["acted"][rows, slots] = Columns.ACTIONS in sources
        self._columns["awaited"][rows, slots], self._columns["ended"][rows, slots] = awaited[kept], ended[kept]

    def _pay(self, arrived: np.ndarray, numbers: np.ndarray, former: list[Stream]) -> None:
        """Add each of the rewards [T + 1, E] to the last decision before its arrival."""
        since = np.array([stream.number for stream in former])
        is_new = numbers > since
        is_new &= numbers != UNKNOWN
        latest = np.maximum.accumulate(np.where(is_new, numbers, UNKNOWN), 0)
        latest = np.maximum(np.concatenate([np.full((1, len(since)), UNKNOWN), latest[:-1]]), since)
        pays = (arrived != 0) & self._is_kept(latest)
        np.add.at(self._columns[Columns.REWARDS], latest[pays] % self._capacity, arrived[pays])

    def _settle(
        self,
        batch: Mapping[str, Any],
        numbers: np.ndarray,
        former: list[Stream],
        finished: Mapping[str, np.ndarray],
    ) -> None:
        """Link decisions, drop finished episodes from `_running`, and determine which decisions are complete.

        An episode without a chunk in the batch is finished.
        """
        next_of = self._columns[NEXT]
        touched, ended = [numbers[self._is_kept(numbers)]], []
        ids, done = (batch[name].tolist() for name in (Columns.EPS_ID, Columns.IS_DONE))
        for chunk, id_ in enumerate(ids):
            new = numbers[:, chunk][numbers[:, chunk] > former[chunk].number]
            chain = np.array([former[chunk].number, *new.tolist()])
            chain = chain[self._is_kept(chain)]
            next_of[chain[:-1] % self._capacity] = chain[1:]
            touched.append(chain)
            self._running[id_].open = self._open_of(self._running[id_])
        is_done = dict(zip(ids, done, strict=True))
        for id_, stream in self._running.items():
            stream.finished = finished[id_]
            is_over = is_done.get(id_, True) or (not self._respawn and bool(stream.finished.all()))
            row = stream.number % self._capacity
            if is_over and not stream.open and self._is_kept(stream.number) and next_of[row] != NONE:
                next_of[row] = NONE
                touched.append(np.array([stream.number]))
                ended.append(stream.first)
        self._running = {id_: self._running[id_] for id_ in ids if not is_done[id_]}
        rows = np.concatenate(touched) % self._capacity
        acted, awaited = self._columns["acted"][rows], self._columns["awaited"][rows]
        self._is_ready[rows] = acted.any(1) & ~awaited.any(1) & (next_of[rows] != UNKNOWN)
        self._ready = np.flatnonzero(self._is_ready)
        episodes = np.concatenate([self._ended, np.array(ended, np.int64)])
        self._ended = episodes[self._is_kept(episodes)]

    def _is_kept(self, numbers: Any) -> Any:
        return (numbers >= 0) & (numbers >= self._n - self._capacity)

    def _open_of(self, stream: Stream) -> dict[int, int]:
        """Return the open decisions of the stream that still wait for an action."""
        numbers = np.array([*stream.open.values()], np.int64)
        is_open = self._is_kept(numbers)
        is_open[is_open] = self._columns["awaited"][numbers[is_open] % self._capacity].any(1)
        return dict(compress(stream.open.items(), is_open.tolist()))

    # State.

    def get_state(self) -> dict[str, Any]:
        """Return the complete state as plain data, for checkpoints."""
        n = min(self._n, self._capacity)
        columns = {name: map_struct(lambda leaf: leaf[:n].copy(), column) for name, column in self._columns.items()}
        running = [
            [each.env_t, each.number, [*each.open.items()], each.first, each.finished]
            for each in self._running.values()
        ]
        return {"columns": columns, "capacity": self._capacity, "n": self._n, "ready": self._ready,
                "ended": self._ended, "episode_ids": list(self._running), "running": running,
                "rng": self._rng.bit_generator.state}  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state.

        Args:
            state: Result of `get_state()` of a replay with the same capacity.

        Raises:
            CheckpointError: If the capacity differs, or an earlier version saved the state.
        """
        if state["capacity"] != self._capacity:
            raise CheckpointError(
                f"the saved replay has a capacity of {state['capacity']:,}, but this one has {self._capacity:,}"
            )

        if state["columns"] and (missing := [name for name in FLAGS if name not in state["columns"]]):
            raise CheckpointError(
                f"the saved replay has no column {missing[0]!r}: an earlier version of fastmarl saved it"
            )

        def whole(leaf: np.ndarray) -> np.ndarray:
            column = np.zeros((self._capacity, *leaf.shape[1:]), leaf.dtype)
            column[: len(leaf)] = leaf
            return column

        self._columns = {name: map_struct(whole, column) for name, column in state["columns"].items()}
        self._n, self._ready = int(state["n"]), np.asarray(state["ready"], np.int64)
        self._is_ready[:] = False
        self._is_ready[self._ready] = True
        self._ended = np.asarray(state["ended"], np.int64)
        self._running = {
            id_: Stream(env_t, number, {int(t): int(i) for t, i in opened}, *others)
            for id_, (env_t, number, opened, *others) in zip(state["episode_ids"], state["running"], strict=True)
        }
        self._rng.bit_generator.state = state["rng"]
