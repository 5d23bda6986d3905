"""What one call of `sample()` adds to a record of actions: who did what in which episode, and fingerprints of what they
saw and were paid, by which a replay is held against the record.

Axes in names: C chunk, T entry (an agent's stay in a chunk), N row that has acted, or that has come.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastmarl.acting.env_actions import EnvActions
from fastmarl.episodes.chunk import UnreadChunks
from fastmarl.errors import RecordingError
from fastmarl.kernels.fingerprints import add_words, group_by_entry, mix, word_keys
from fastmarl.kernels.rows import as_bytes
from fastmarl.record.block import Block
from fastmarl.record.store import RowStore

RUN_DIGITS = 20  # of an episode's id: the run's
OF_CHUNKS = ("env", "from", "to", "flags", "seed", "lanes")
MOST_FIRST_KEYS = 1024  # leaves begin with different keys, by their paths: in whatever order they are
WORDS = {8: np.uint64, 4: np.uint32, 1: np.uint8}


@dataclass(frozen=True)
class Fragment:
    """Arrays and words, see `fastmarl.recorder.blocks`.

    Attributes:
        agents: names of agents that are new to the file, in the order of their numbers.
    """

    arrays: dict[str, np.ndarray]
    words: dict[str, Any]
    agents: dict[str, int]


class AgentNames:
    """Numbers of the agents in one file. An id is known by its repr(): any hashable can be one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[type, Hashable], int] = {}  # 1 and True are different agents
        self._by_name: dict[str, int] = {}
        self._coming: dict[tuple[type, Hashable], int] = {}

    def numbers_of(self, agent_ids: Sequence[Hashable]) -> tuple[np.ndarray, dict[str, int]]:
        """int32: the numbers of these ids; and those that are new, by name, which `learn()` takes.

        Raises:
            RecordingError: an id can't be told from another one by its repr().
        """
        new: dict[str, int] = {}
        of_new: dict[tuple[type, Hashable], int] = {}
        known = self._numbers
        found = np.empty(len(agent_ids), np.int32)
        for index, agent_id in enumerate(agent_ids):
            key = type(agent_id), agent_id
            number = known.get(key, -1)
            if number < 0:
                if key not in of_new:
                    of_new[key] = self._new(agent_id, new)
                number = of_new[key]
            found[index] = number
        self._coming = of_new
        return found, new

    def _new(self, agent_id: Hashable, new: dict[str, int]) -> int:
        name = repr(agent_id)
        if " at 0x" in name or (type(agent_id).__repr__ is object.__repr__):
            raise RecordingError(f"record_actions knows agents by the repr() of their ids, but {name} says where an "
                                 f"object lies in memory; use strings, numbers or tuples, or give "
                                 f"{type(agent_id).__name__} a __repr__()")  # fmt: skip
        if name not in self._by_name and name not in new:
            new[name] = len(self._by_name) + len(new)
        return new.get(name, self._by_name.get(name, -1))

    def learn(self, new: dict[str, int]) -> None:
        """These are in the file now."""
        self._by_name.update(new)
        self._numbers.update(self._coming)


def fragment_of(
    store: RowStore,
    notes: Sequence[UnreadChunks],
    env_actions: Sequence[EnvActions] | None,
    names: AgentNames,
    *,
    late_rewards: bool,
) -> Fragment | None:
    """What the call has recorded, which is about to end; None if that is nothing.

    Args:
        store: with the call's rows.
        notes: of its chunks.
        env_actions: by module index, what turns raw actions into those that were sent. None: without actions.
        names: of the file's agents.
        late_rewards: whether rewards may come after an agent's end: those of last transitions are not certain then.
    """
    numbers = np.concatenate([_numbers(each) for each in notes] or [np.zeros((0, 7), np.int64)])
    if not len(numbers):
        return None
    table = store.table
    lanes = np.array([lane for each in notes for lane in each.lanes], np.int64)
    entry_L = np.full(len(table.row_L), -1, np.int32)
    entry_L[lanes[::-1]] = np.arange(len(lanes), dtype=np.int32)[::-1]  # of several, the first
    agent_ids = table.agent_ids
    agent_T, new_agents = names.numbers_of([agent_ids[lane] for lane in lanes.tolist()])
    arrays = {name: _narrow(numbers[:, index]) for name, index in zip(OF_CHUNKS, (0, 1, 2, 4, 5, 6), strict=True)}
    ids = [id_ for each in notes for id_ in each.ids]
    runs = list(dict.fromkeys(id_[:RUN_DIGITS] for id_ in ids))
    arrays["run"] = _narrow(np.array([runs.index(id_[:RUN_DIGITS]) for id_ in ids] if len(runs) > 1 else [0] * len(ids)))
    arrays["number"] = np.array([int(id_[RUN_DIGITS:], 16) for id_ in ids], np.uint64)
    module_T = table.module_L[lanes]
    arrays |= {"agent": _narrow(agent_T), "module": _narrow(module_T), "done": table.done_L[lanes]}
    counts = np.zeros((2, len(lanes)), np.int64)
    firsts = np.zeros((2, len(lanes)), np.int32)
    modules = {}
    for module in store.active:
        of_module = _ModuleRecord(store, module, entry_L, late_rewards)
        if env_actions is not None:
            of_module.add_actions(arrays, counts[0], firsts[0], env_actions[module])
        of_module.add_fingerprints(arrays, counts[1], firsts[1])
        modules[str(module)] = {"id": store.module_ids[module], **of_module.forms}
    for name, array in (("acted", counts[0]), ("came", counts[1]), ("acts_from", firsts[0]), ("comes_at", firsts[1])):
        arrays[name] = _narrow(array)
    words = {"runs": runs, "modules": modules, "agents": list(new_agents)}
    return Fragment(arrays, words, new_agents)


def _numbers(notes: UnreadChunks) -> np.ndarray:
    """int64 [n, 7]: those of its chunks, with the lanes of each instead of those up to its end."""
    numbers = notes.numbers[: len(notes)].copy()
    numbers[1:, -1] -= numbers[:-1, -1].copy()
    return numbers


class _ModuleRecord:
    """Adds one module's rows to a fragment."""

    def __init__(self, store: RowStore, module: int, entry_L: np.ndarray, late_rewards: bool):
        self._store, self._module, self._entry_L, self._late_rewards = store, module, entry_L, late_rewards
        self._block: Block = store.blocks[module]
        layout = self._block.raw_layout or self._block.layout
        self._obs_leaves = layout.leaves
        self.forms: dict[str, Any] = {
            "obs": [[repr(leaf.path), leaf.dtype.str, list(leaf.shape)] for leaf in layout.leaves],
            "actions": [],
        }

    def add_actions(
        self, arrays: dict[str, np.ndarray], count_T: np.ndarray, first_T: np.ndarray, env_actions: EnvActions
    ) -> None:
        """Of the rows that have acted in this call."""
        block, first, end = self._block, self._store.first_action[self._module], self._store.acting_from[self._module]
        if end == first:
            return
        rows = slice(first, end)
        order, steps = self._grouped(self._entry_L[block.lane_R[rows]], block.env_t_R[rows], count_T, first_T)
        self._add_steps(arrays, "acts", steps)
        for index, sent in enumerate(env_actions.sent(block.outputs, first, end)):
            arrays[f"{self._module}.action.{index}"] = _narrow(sent.take(order, 0))
            self.forms["actions"].append([sent.dtype.str, list(sent.shape[1:])])

    def add_fingerprints(self, arrays: dict[str, np.ndarray], count_T: np.ndarray, first_T: np.ndarray) -> None:
        """Of the rows that have come in this call, and of final observations."""
        block, rows = self._block, self._store.rows[self._module]
        first, n = len(block.lookback_R), rows.n - len(block.lookback_R)
        n_finals = rows.n_finals
        last_F = block.final_prev_F[:n_finals]
        lane_N = np.concatenate([block.lane_R[first : rows.n], block.lane_R[last_F]])
        env_t_N = np.concatenate([block.env_t_R[first : rows.n], self._store.table.end_env_t_L[lane_N[n:]]])
        prev_N = np.concatenate([block.prev_R[first : rows.n], last_F])
        if self._late_rewards:
            prev_N[n:] = -1
        order, steps = self._grouped(self._entry_L[lane_N], env_t_N, count_T, first_T)
        self._add_steps(arrays, "comes", steps)
        sum_N = np.zeros(len(lane_N), np.uint64)
        for leaf, rows_R, finals_F in zip(self._obs_leaves, block.raw_obs, block.raw_final_obs, strict=True):
            if leaf.dtype != object:
                first_key = zlib.crc32(repr(leaf.path).encode()) % MOST_FIRST_KEYS
                _add_leaf(rows_R, first, n, first_key, sum_N)
                _add_leaf(finals_F, 0, n_finals, first_key, sum_N[n:])
        prints = np.empty(len(lane_N), np.uint32)
        mix(sum_N, prev_N, block.reward_R, prints)
        arrays[f"{self._module}.print"] = prints[order]

    def _grouped(
        self, entry_N: np.ndarray, env_t_N: np.ndarray, count_T: np.ndarray, first_T: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """(row numbers in the order of entries; env steps between them, None: all are 1); counts and first env steps
        are added to those of other modules' entries."""
        counts, firsts = np.empty_like(count_T), np.zeros_like(first_T)
        order, steps = np.empty(len(entry_N), np.int64), np.empty(len(entry_N), np.int32)
        k, most = group_by_entry(entry_N, env_t_N, counts, firsts, order, steps)
        count_T += counts
        first_T += firsts
        return order[:k], None if most == 1 else steps[:k]

    def _add_steps(self, arrays: dict[str, np.ndarray], name: str, steps: np.ndarray | None) -> None:
        if steps is not None:
            arrays[f"{self._module}.{name}"] = _narrow(steps)


def _add_leaf(rows: np.ndarray, first: int, n: int, first_key: int, sum_N: np.ndarray) -> None:
    """Add a leaf's words to the sums of rows first .. first + n."""
    row_bytes = as_bytes(rows)
    size = next(size for size in WORDS if row_bytes.shape[1] % size == 0)
    words = row_bytes.view(WORDS[size])
    add_words(words, first, n, _keys(first_key + words.shape[1])[first_key:], sum_N)


_known_keys = word_keys(2 * MOST_FIRST_KEYS)


def _keys(n: int) -> np.ndarray:
    global _known_keys
    if len(_known_keys) < n:
        _known_keys = word_keys(2 * n)
    return _known_keys


def _narrow(array: np.ndarray) -> np.ndarray:
    """The same numbers in as few bytes as they need, if they are integers."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize == 1:
        return array
    if not array.size:
        return array.astype(np.uint8)
    low, high = int(array.min()), int(array.max())
    kinds = (np.uint8, np.uint16, np.uint32) if low >= 0 else (np.int8, np.int16, np.int32)
    dtype = next((kind for kind in kinds if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max), array.dtype)
    return array.astype(dtype, copy=False)

