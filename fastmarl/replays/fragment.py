"""The part of a record added by a single call of `sample()`: actions and fingerprints of each episode.

Replays compare the fingerprints of observations and rewards. Axes in names: C chunk, T entry (a stay of an agent in a
chunk), N row that acted or was observed.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastmarl.core.connectors.env_actions import EnvActions
from fastmarl.core.episodes.chunk import UnreadChunks
from fastmarl.core.errors import RecordingError
from fastmarl.core.kernels.fingerprints import add_words, group_by_entry, mix, word_keys
from fastmarl.core.kernels.rows import as_bytes
from fastmarl.core.spaces.values import narrowest
from fastmarl.core.store.block import Block
from fastmarl.core.store.store import RowStore

ID_BYTES, RUN_BYTES = 16, 10  # bytes of an episode id, and of the prefix shared by all ids of a run
OF_CHUNKS = ("env", "from", "to", "flags", "seed", "lanes")
LISTED = (*OF_CHUNKS, "number")  # arrays read to find episodes
OF_ENTRIES = ("agent", "module", "done", "acted", "came", "acts_from", "comes_at")
MOST_FIRST_KEYS = 1024  # the hash of a leaf's path selects its first key, so the order of leaves is irrelevant
WORDS = {8: np.uint64, 4: np.uint32, 1: np.uint8}


class Fragment(NamedTuple):
    """Arrays and words of a block; see `fastmarl.replays.blocks`."""

    arrays: dict[str, np.ndarray]
    words: dict[str, Any]


def fragment_of(
    store: RowStore,
    notes: Sequence[UnreadChunks],
    env_actions: Sequence[EnvActions] | None,
    *,
    late_rewards: bool,
) -> Fragment | None:
    """Return the record of a call that is about to end, or None if the record is empty.

    Args:
        store: Store with the rows of the call.
        notes: Notes of the chunks in the call.
        env_actions: Conversion of raw actions to env actions for each module index; None leaves out actions.
        late_rewards: True if rewards may arrive after the end of an agent, so that fingerprints of last transitions
            must omit them.
    """
    numbers = np.concatenate([_numbers(each) for each in notes if len(each)] or [np.zeros((0, 7), np.int64)])
    if not len(numbers):
        return None
    table, agent_ids = store.table, store.table.agent_ids
    lane_list = [lane for each in notes for lane in each.lanes] if len(notes) > 1 else notes[0].lanes
    lanes = np.array(lane_list, np.int64)
    entry_L = np.full(len(table.row_L), -1, np.int32)
    entry_L[lanes[::-1]] = np.arange(len(lanes) - 1, -1, -1, dtype=np.int32)  # the first of equal lanes
    agent_T, names = _numbered(list(map(agent_ids.__getitem__, lane_list)), numbers[:, -1])
    arrays = _narrow_columns(numbers[:, [0, 1, 2, 4, 5, 6]], OF_CHUNKS)
    words = _add_ids(arrays, [id_ for each in notes for id_ in each.ids])
    counts, firsts = np.zeros((2, len(lanes)), np.int64), np.zeros((2, len(lanes)), np.int32)
    modules = {}
    for module in store.active:
        of_module = _ModuleRecord(store, module, entry_L, late_rewards)
        if env_actions is not None:
            of_module.add_actions(arrays, counts[0], firsts[0], env_actions[module])
        of_module.add_fingerprints(arrays, counts[1], firsts[1])
        modules[str(module)] = {"id": store.module_ids[module], **of_module.forms}
    columns = np.stack([agent_T, table.module_L[lanes], table.done_L[lanes], *counts, *firsts], 1)
    arrays |= _narrow_columns(columns, OF_ENTRIES)
    return Fragment(arrays, {**words, "modules": modules, "agents": names})


def _numbered(id_T: Sequence[Hashable], lanes: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Number agents by name, the repr() of their id, and return (numbers int64 [t], list of names).

    Args:
        id_T: Ids of agents, which may be any hashable objects.
        lanes: Number of ids in each chunk.

    Raises:
        RecordingError: If two ids in a chunk have the same repr(), or a repr() contains a memory address.
    """
    names = {agent_id: _name(agent_id) for agent_id in dict.fromkeys(id_T)}
    by_name = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    numbers = {agent_id: by_name[name] for agent_id, name in names.items()}
    agent_T = np.fromiter(map(numbers.__getitem__, id_T), np.int64, len(id_T))
    if len(by_name) < len(names):
        _check_distinct(lanes, agent_T.tolist(), id_T)
    return agent_T, list(by_name)


def _name(agent_id: Hashable) -> str:
    name = repr(agent_id)
    if " at 0x" in name:
        raise RecordingError(f"record_actions identifies agents by the repr() of their ids, but {name} contains "
                             f"a memory address; use strings, numbers or tuples, or give "
                             f"{type(agent_id).__name__} a __repr__()")  # fmt: skip
    return name


def _check_distinct(lanes: np.ndarray, agent_T: Sequence[int], id_T: Sequence[Hashable]) -> None:
    """Raise RecordingError if different ids in a chunk have the same number."""
    seen: dict[tuple[int, int], Hashable] = {}
    chunk_T = np.repeat(np.arange(len(lanes)), lanes).tolist()
    for chunk, number, agent_id in zip(chunk_T, agent_T, id_T, strict=True):
        if seen.setdefault((chunk, number), agent_id) != agent_id:
            raise RecordingError(f"record_actions identifies agents by the repr() of their ids, but two agents of an "
                                 f"episode are {agent_id!r}; give {type(agent_id).__name__} a __repr__() that "
                                 f"distinguishes them")  # fmt: skip


def _add_ids(arrays: dict[str, np.ndarray], ids: list[str]) -> dict[str, Any]:
    """Add the episode ids to the arrays as bytes, and return words with their common prefix."""
    try:
        number = np.frombuffer(bytes.fromhex("".join(ids)), np.uint8).reshape(len(ids), ID_BYTES)
    except ValueError:  # ids come from a state set by the user
        return {"run": "", "ids": ids}
    if (number[:, :RUN_BYTES] == number[0, :RUN_BYTES]).all():
        arrays["number"] = number[:, RUN_BYTES:]
        return {"run": ids[0][: 2 * RUN_BYTES]}
    arrays["number"] = number
    return {"run": ""}


def _numbers(notes: UnreadChunks) -> np.ndarray:
    """Return the numbers of all chunks, int64 [n, 7], with lane counts, not cumulative sums, in the last column."""
    numbers = notes.numbers[: len(notes)].copy()
    numbers[1:, -1] -= numbers[:-1, -1].copy()
    return numbers


class _ModuleRecord:
    """Adds the rows of a module to a fragment."""

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
        """Add the actions of the rows that acted in this call."""
        block, first, end = self._block, self._store.first_action[self._module], self._store.acting_from[self._module]
        if end == first:
            return
        rows = slice(first, end)
        order, steps = self._grouped(self._entry_L[block.lane_R[rows]], block.env_t_R[rows], count_T, first_T)
        self._add_steps(arrays, "acts", steps)
        for index, sent in enumerate(env_actions.sent(block.outputs, first, end)):
            narrow = sent.astype(env_actions.narrow_dtypes[index] or sent.dtype, copy=False)
            if not np.array_equal(narrow, sent):  # modules may choose NaN, or actions outside their space
                narrow = sent
            arrays[f"{self._module}.action.{index}"] = narrow.take(order, 0)
            self.forms["actions"].append([sent.dtype.str, list(sent.shape[1:])])

    def add_fingerprints(self, arrays: dict[str, np.ndarray], count_T: np.ndarray, first_T: np.ndarray) -> None:
        """Add fingerprints of the rows observed in this call, and of final observations."""
        block, n, n_finals = self._block, *self._n_rows()
        last_F = block.final_prev_F[:n_finals]
        lane_N = np.concatenate([block.lane_R[:n], block.lane_R[last_F]])
        env_t_N = np.concatenate([block.env_t_R[:n], self._store.table.end_env_t_L[lane_N[n:]]])
        prev_N = np.concatenate([block.prev_R[:n], last_F])
        if self._late_rewards:
            prev_N[n:] = -1
        entry_N = self._entry_L[lane_N]
        # Carried-over rows were recorded before, unless their episode had made no step and so was in no chunk.
        n_carried = len(block.lookback_R)
        entry_N[:n_carried][env_t_N[:n_carried] > 0] = -1
        order, steps = self._grouped(entry_N, env_t_N, count_T, first_T)
        self._add_steps(arrays, "comes", steps)
        sum_N = np.zeros(len(lane_N), np.uint64)
        for leaf, rows_R, finals_F in zip(self._obs_leaves, block.raw_obs, block.raw_final_obs, strict=True):
            if leaf.dtype != object:
                first_key = zlib.crc32(repr(leaf.path).encode()) % MOST_FIRST_KEYS
                _add_leaf(rows_R, n, first_key, sum_N)
                _add_leaf(finals_F, n_finals, first_key, sum_N[n:])
        prints = np.empty(len(order), np.uint32)
        mix(sum_N, prev_N, block.reward_R, order, prints)
        arrays[f"{self._module}.print"] = prints

    def _n_rows(self) -> tuple[int, int]:
        rows = self._store.rows[self._module]
        return rows.n, rows.n_finals

    def _grouped(
        self, entry_N: np.ndarray, env_t_N: np.ndarray, count_T: np.ndarray, first_T: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Group rows by entry, adding the row count and first env step of each entry to `count_T` and `first_T`.

        Returns:
            (row indices in the order of entries, numbers of env steps between rows or None if all are 1).
        """
        counts, firsts = np.empty_like(count_T), np.zeros_like(first_T)
        order, steps = np.empty(len(entry_N), np.int64), np.empty(len(entry_N), np.int32)
        k, most = group_by_entry(entry_N, env_t_N, counts, firsts, order, steps)
        count_T += counts
        first_T += firsts
        return order[:k], None if most == 1 else steps[:k]

    def _add_steps(self, arrays: dict[str, np.ndarray], name: str, steps: np.ndarray | None) -> None:
        if steps is not None:
            arrays[f"{self._module}.{name}"] = _narrow(steps)


def _add_leaf(rows: np.ndarray, n: int, first_key: int, sum_N: np.ndarray) -> None:
    """Add the words of a leaf to the sums of the first n rows."""
    row_bytes = as_bytes(rows)
    size = next(size for size in WORDS if row_bytes.shape[1] % size == 0)
    words = row_bytes.view(WORDS[size])
    add_words(words, n, _keys(first_key + words.shape[1])[first_key:], sum_N)


_known_keys = word_keys(2 * MOST_FIRST_KEYS)


def _keys(n: int) -> np.ndarray:
    global _known_keys
    if len(_known_keys) < n:
        _known_keys = word_keys(2 * n)
    return _known_keys


def _narrow(array: np.ndarray) -> np.ndarray:
    """Convert a non-empty integer array to the narrowest dtype that can represent it."""
    return array.astype(narrowest(int(array.min()), int(array.max())), copy=False)


def _narrow_columns(columns: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Split integers [n, k] into named columns, each of the narrowest dtype that can represent it."""
    if not len(columns):
        return {name: np.zeros(0, np.uint8) for name in names}
    bounds = zip(names, columns.min(0).tolist(), columns.max(0).tolist(), strict=True)
    return {name: columns[:, k].astype(narrowest(low, high)) for k, (name, low, high) in enumerate(bounds)}
