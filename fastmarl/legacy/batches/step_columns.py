"""The steps of a policy as columns: the RLlib `SampleBatch` methods that do not depend on `MultiAgentBatch`."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from numbers import Number
from typing import Any, Self

import numpy as np
import torch

from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.legacy.batches.packing import is_packed, pack, unpack

DONES = "dones"
STATE_IN = "state_in_"
OBSERVATIONS = frozenset({Columns.OBS, Columns.NEXT_OBS})


def marks_of(batch: Any) -> dict[str, Any]:
    """Return the constructor arguments of an RLlib or fastmarl SampleBatch, except its columns."""
    return {
        "_time_major": batch.time_major,
        "_max_seq_len": batch.max_seq_len,
        "_zero_padded": batch.zero_padded,
        "_is_training": batch.is_training,
        "_num_grad_updates": batch.num_grad_updates,
    }


class StepColumns(dict[str, Any]):
    """Base class with the methods of `SampleBatch` that do not depend on `MultiAgentBatch`.

    Arguments and attributes are documented in `SampleBatch`.
    """

    accessed_keys: set[str]
    added_keys: set[str]
    deleted_keys: set[str]
    intercepted_values: dict[str, Any]
    get_interceptor: Callable[[Any], Any] | None
    _slices_sequences: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Create an empty batch; pickle and copy add columns to it without calling `__init__()`."""
        batch = super().__new__(cls)
        batch._forget_uses()
        batch.intercepted_values, batch.get_interceptor, batch._slices_sequences = {}, None, False
        return batch

    def _forget_uses(self) -> None:
        self.accessed_keys, self.added_keys, self.deleted_keys = set(), set(), set()

    def __init__(
        self,
        *args: Any,
        _time_major: bool | None = None,
        _max_seq_len: int | None = None,
        _zero_padded: bool = False,
        _is_training: bool | None = None,
        _num_grad_updates: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        if DONES in self.keys():
            raise _no_dones()
        in_columns = bool(self.pop("is_training", False))
        self.is_training = in_columns if _is_training is None else _is_training
        self.time_major, self.zero_padded = _time_major, _zero_padded
        self.num_grad_updates = _num_grad_updates
        lengths = self.get(Columns.SEQ_LENS)
        if lengths is None or (isinstance(lengths, list) and not lengths):
            self.pop(Columns.SEQ_LENS, None)
        for name, column in self.items():
            if isinstance(column, Number | list) and name != Columns.INFOS:
                self[name] = np.asarray(column, np.int32 if name == Columns.SEQ_LENS else None)
        lengths = self.get(Columns.SEQ_LENS, ())
        if _max_seq_len is None and len(lengths):
            _max_seq_len = int(max(lengths))
        self.max_seq_len = _max_seq_len
        self.count = _count_steps(self)
        self._forget_uses()

    # Columns.

    def __getitem__(self, key: Any) -> Any:
        """Return the column of this name or, for a slice of steps, a batch that shares the arrays.

        For a recurrent policy, a slice returns complete sequences: from the one containing its start up to, but not
        including, the one containing its stop.
        """
        if isinstance(key, slice):
            if self._slices_sequences:
                return self._sequences(key)
            return self._part(*key.indices(self.count))
        name = Columns.TERMINATEDS if key == DONES else key
        column = super().__getitem__(name)
        self.accessed_keys.add(name)
        if self.get_interceptor is None:
            return column
        if name not in self.intercepted_values:
            self.intercepted_values[name] = self.get_interceptor(column)
        return self.intercepted_values[name]

    def __setitem__(self, key: str, item: Any) -> None:
        if key == DONES:
            raise _no_dones()
        if key not in self:
            self.added_keys.add(key)
        super().__setitem__(key, item)
        self.intercepted_values.pop(key, None)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.deleted_keys.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def columns(self, keys: Sequence[str]) -> list[Any]:
        """Return the columns with the names `keys`."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a dict of column name -> entry for each step, with a "seq_lens" of 1 and without recurrent states."""
        columns = {name: column for name, column in self.items() if not _is_of_sequences(name)}
        of_all = {Columns.SEQ_LENS: 1} if Columns.SEQ_LENS in self else {}
        for i in range(self.count):
            yield {**{name: of_rows(column, i) for name, column in columns.items()}, **of_all}

    # Counts.

    def __len__(self) -> int:
        return self.count

    def agent_steps(self) -> int:
        """Return `count`, the number of steps."""
        return self.count

    def env_steps(self) -> int:
        """Return `count`, the number of steps."""
        return self.count

    def size_bytes(self) -> int:
        """Return the size of all arrays and tensors in bytes."""
        return sum(getattr(leaf, "nbytes", 0) for column in self.values() for _, leaf in flatten_struct(column))

    def is_terminated_or_truncated(self) -> bool:
        """Return whether the last step ended its episode."""
        return bool(self._ends()[-1])

    def is_single_trajectory(self) -> bool:
        """Return whether all steps belong to a single trajectory: no step before the last one ended an episode."""
        return not self._ends()[:-1].any()

    def _ends(self) -> np.ndarray:
        """Return bool [n], True at steps that ended an episode."""
        ends = np.asarray(self[Columns.TERMINATEDS], bool)
        return ends | np.asarray(self[Columns.TRUNCATEDS], bool) if Columns.TRUNCATEDS in self else ends

    def set_training(self, training: bool = True) -> None:
        """Set the attribute `is_training` to `training`."""
        self.is_training = training

    def set_get_interceptor(self, fn: Callable[[Any], Any] | None) -> None:
        """Make `batch[name]` return `fn(column)`, computed once per column, or the column itself if `fn` is None."""
        if fn is not self.get_interceptor:
            self.intercepted_values = {}
        self.get_interceptor = fn

    def enable_slicing_by_batch_id(self) -> None:
        """Make slices of this batch, whose columns are [B, T, ...], select sequences (axis B) instead of steps."""
        self._slices_sequences = True

    def disable_slicing_by_batch_id(self) -> None:
        """Make slices of this batch select steps again."""
        self._slices_sequences = False

    # New batches from the steps of this batch.

    def copy(self, shallow: bool = False) -> Self:
        """Return a copy of the batch, which shares the arrays if `shallow`."""
        columns = dict(self) if shallow else {name: _copy_of(column) for name, column in self.items()}
        return self._like(columns, zero_padded=self.zero_padded, max_seq_len=self.max_seq_len)

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> Self:
        """Return the steps from `start` to `end`, without copying.

        Args:
            start: First step, 0 or more.
            end: Step after the last one.
            state_start: For a recurrent policy, index of the first sequence containing these steps; None to find it.
                If this sequence is cut, it keeps the state from before its first step in this batch.
            state_end: Index of the sequence after the last one, which may be cut; found if `state_start` is None.

        Raises:
            BatchError: If a step is negative, or the sequences are padded.
        """
        if start < 0 or self.zero_padded:
            raise BatchError(
                f"slice() requires start >= 0 and sequences without padding, got start={start}, "
                f"zero_padded={self.zero_padded}"
            )
        steps = slice(start, min(end, self.count))
        if Columns.SEQ_LENS not in self:
            return self._like(self._taken(steps))
        ends = np.cumsum(self[Columns.SEQ_LENS])
        if state_start is None:
            state_start = int(np.searchsorted(ends, steps.start, "right"))
            state_end = int(np.searchsorted(ends, steps.stop, "left")) + 1
        edges = np.clip([steps.start, *ends[state_start:state_end]], steps.start, steps.stop)
        columns = self._taken(steps, slice(state_start, state_end))
        return self._like({**columns, Columns.SEQ_LENS: np.diff(edges).astype(np.int32)})

    def _part(self, begin: int, end: int, step: int) -> Self:
        if step != 1:
            raise BatchError(f"slices of batches must have step 1, got {step}")
        if Columns.SEQ_LENS not in self:
            return self._like(self._taken(slice(begin, end)))
        ends = np.cumsum(np.asarray(self[Columns.SEQ_LENS]))
        first, after = np.searchsorted(ends, [begin, end], "right").tolist()
        edges = np.concatenate(([0], ends))
        if self.zero_padded:
            edges = np.arange(len(edges)) * self._padded_length()
        columns = self._taken(slice(edges[first], edges[after]), slice(first, after))
        return self._like(columns, self.zero_padded, self.max_seq_len if self.zero_padded else None)

    def _sequences(self, key: Any) -> Self:
        """Return a batch of these sequences of columns [B, T, ...]; "infos" has an entry for each step."""
        if Columns.SEQ_LENS not in self:
            raise BatchError(f'slicing by batch id needs the column "{Columns.SEQ_LENS}"')
        lengths = np.asarray(self[Columns.SEQ_LENS])
        begin, end, _ = key.indices(len(lengths))
        columns = self._taken(key)
        if Columns.INFOS in self:
            first = int(lengths[:begin].sum())
            columns[Columns.INFOS] = self[Columns.INFOS][first : first + int(lengths[begin:end].sum())]
        return self._like(columns)

    def _taken(self, rows: Any, sequences: Any = None) -> dict[str, Any]:
        """Index all columns with `rows`, but columns of sequences with `sequences` unless it is None."""
        of_states = rows if sequences is None else sequences
        return {name: of_rows(column, of_states if _is_of_sequences(name) else rows) for name, column in self.items()}

    def _like(self, columns: Mapping[str, Any], zero_padded: bool = False, max_seq_len: int | None = None) -> Self:
        return type(self)(columns, **marks_of(self) | {"_zero_padded": zero_padded, "_max_seq_len": max_seq_len})

    def _padded_length(self) -> int:
        """Return the number of rows in a padded sequence."""
        if self.max_seq_len is None:
            raise BatchError("padded sequences need a max_seq_len")
        return self.max_seq_len

    def timeslices(self, size: int | None = None, num_slices: int | None = None, k: int | None = None) -> list[Self]:
        """Split into pieces of `size` steps, the last possibly shorter, or into `num_slices` pieces.

        Args:
            num_slices: Number of pieces; if the steps cannot be divided evenly, the last pieces are one step longer.
            k: Deprecated name of `size`.
        """
        if num_slices is not None and num_slices >= 1:
            edges = _even_edges(self.count, num_slices)
        else:
            length = size or k or 0
            if length < 1:
                raise BatchError("timeslices() needs a positive size or num_slices")
            edges = [*range(0, self.count, length), self.count]
        return [self[begin:end] for begin, end in pairwise(edges)]

    def split_by_episode(self, key: str | None = None) -> list[Self]:
        """Return a batch for each episode, in order.

        Args:
            key: With "eps_id", an episode is a run of steps with equal "eps_id"; with "dones", it ends with a step that
                terminated or truncated it. None means "eps_id" if there is such a column, else "dones".
        """
        if key not in (None, Columns.EPS_ID, DONES):
            raise BatchError(f'key must be None, "{Columns.EPS_ID}" or "{DONES}", got {key!r}')
        if not self.count:
            return []
        if key == Columns.EPS_ID or (key is None and Columns.EPS_ID in self):
            eps_id = np.asarray(self[Columns.EPS_ID])
            ends_before = eps_id[1:] != eps_id[:-1]
        else:
            ends_before = self._ends()[:-1]
        edges = [0, *(np.flatnonzero(ends_before) + 1).tolist(), self.count]
        return [self[begin:end] for begin, end in pairwise(edges)]

    # Changes in place.

    def shuffle(self) -> Self:
        """Shuffle the steps or the padded sequences in place, using the global NumPy generator.

        Raises:
            BatchError: If the batch has unpadded sequences.
        """
        if Columns.SEQ_LENS not in self:
            order = np.random.permutation(self.count)  # noqa: NPY002, as RLlib draws
            self.update(self._taken(order))
            return self
        if not self.zero_padded:
            raise BatchError("only padded sequences can be shuffled; call right_zero_pad() first")
        order = np.random.permutation(len(self[Columns.SEQ_LENS]))  # noqa: NPY002
        length = self._padded_length()
        rows = (order[:, None] * length + np.arange(length)).ravel()
        self.update(self._taken(rows, order))
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> Self:
        """Pad all sequences in place to `max_seq_len` steps with zeros, or with None in object columns.

        Args:
            exclude_states: Leave "state_in_0" and so on unchanged, with an entry per sequence. If False, they must have
                an entry per step and are also padded.

        Raises:
            BatchError: If the batch has no sequences, or one is longer than `max_seq_len`.
        """
        if Columns.SEQ_LENS not in self:
            raise BatchError(f'right_zero_pad() needs the column "{Columns.SEQ_LENS}"')
        lengths = np.asarray(self[Columns.SEQ_LENS])
        if lengths.max() > max_seq_len:
            raise BatchError(f"a sequence of {lengths.max()} steps can't be padded to max_seq_len={max_seq_len}")
        for name, column in self.items():
            if name != Columns.SEQ_LENS and not (exclude_states and name.startswith(STATE_IN)):
                self[name] = _padded_with_zeros(column, lengths, max_seq_len)
        self.zero_padded, self.max_seq_len = True, max_seq_len
        return self

    def compress(self, bulk: bool = False, columns: Collection[str] = OBSERVATIONS) -> Self:
        """Pack these columns in place, entry by entry or, if `bulk`, each column as a single string."""

        def packed(leaf: Any) -> Any:
            return pack(leaf) if bulk else np.array([pack(entry) for entry in leaf])

        self.update({name: map_struct(packed, column) for name, column in self.items() if name in columns})
        return self

    def to_device(
        self,
        device: Any,
        framework: str = "torch",
        pin_memory: bool = False,
        use_stream: bool = False,
        stream: Any = None,
    ) -> Self:
        """Convert all numeric columns to tensors on `device`, in place; object columns are unchanged.

        Args:
            device: The torch device.
            framework: Only "torch".
            pin_memory: Copy from pinned memory, so that a GPU can copy asynchronously.
            use_stream: Copy on `stream`.
            stream: CUDA stream; None for the current one.

        Raises:
            BatchError: If `framework` is not "torch".
        """
        if framework != "torch":
            raise BatchError(f'framework must be "torch", got {framework!r}')

        def moved(leaf: Any) -> Any:
            if isinstance(leaf, np.ndarray):
                if leaf.dtype.kind not in "fiub":
                    return leaf
                leaf = torch.as_tensor(leaf)
            elif not isinstance(leaf, torch.Tensor):
                return leaf
            if leaf.dtype == torch.float64:
                leaf = leaf.to(torch.float32)
            return (leaf.pin_memory() if pin_memory else leaf).to(device, non_blocking=pin_memory)

        with torch.cuda.stream(stream) if use_stream and stream is not None else nullcontext():
            self.update({name: c if isinstance(c, list) else map_struct(moved, c) for name, c in self.items()})
        return self

    def decompress_if_needed(self, columns: Collection[str] = OBSERVATIONS) -> Self:
        """Unpack these columns in place if they are packed."""
        self.update({name: map_struct(_unpacked, column) for name, column in self.items() if name in columns})
        return self

    def __repr__(self) -> str:
        names = [name for name in self if name != Columns.SEQ_LENS]
        sequences = f" (seqs={len(self[Columns.SEQ_LENS])})" if Columns.SEQ_LENS in self else ""
        return f"SampleBatch({self.count}{sequences}: {names})"


def _no_dones() -> KeyError:
    return KeyError(f'"{DONES}" can\'t be set; set "{Columns.TERMINATEDS}" and "{Columns.TRUNCATEDS}"')


def _padded_with_zeros(column: Any, lengths: np.ndarray, max_seq_len: int) -> Any:
    """Pad each sequence of a column to `max_seq_len` steps with zeros, or with None in an object column."""
    steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = np.repeat(np.arange(len(lengths)) * max_seq_len, lengths) + steps

    def padded(leaf: Any) -> np.ndarray:
        values = np.fromiter(leaf, object, len(leaf)) if isinstance(leaf, list) else np.asarray(leaf)
        empty = None if values.dtype == object else np.zeros((), values.dtype)
        filled = np.full((len(lengths) * max_seq_len, *values.shape[1:]), empty)
        filled[rows] = values
        return filled

    return padded(column) if isinstance(column, list) else map_struct(padded, column)


def _even_edges(n: int, n_pieces: int) -> list[int]:
    """Return the edges that divide n steps into `n_pieces` pieces, the last of which may be one step longer."""
    length, n_longer = divmod(n, n_pieces)
    return [i * length + max(0, i - (n_pieces - n_longer)) for i in range(n_pieces + 1)]


def _is_of_sequences(name: str) -> bool:
    """Return whether the column has an entry per sequence rather than per step."""
    return name == Columns.SEQ_LENS or name.startswith(STATE_IN)


def of_rows(column: Any, rows: Any) -> Any:
    """Return the entries of a column at an index, a slice, or an array of indices."""
    if isinstance(column, list):
        return [column[row] for row in rows] if isinstance(rows, np.ndarray) else column[rows]
    return map_struct(lambda leaf: leaf[rows], column)


def _copy_of(column: Any) -> Any:
    if isinstance(column, list):
        return list(column)
    return map_struct(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, column)


def _unpacked(leaf: Any) -> Any:
    if is_packed(leaf):
        return unpack(leaf)
    if isinstance(leaf, np.ndarray) and len(leaf) and is_packed(leaf[0]):
        return np.array([unpack(entry) for entry in leaf])
    return leaf


def _count_steps(columns: Mapping[str, Any]) -> int:
    """Count steps from sequence lengths or, without them, from the first non-empty column except infos and states."""
    lengths = columns.get(Columns.SEQ_LENS)
    if lengths is not None and len(lengths):
        return int(lengths.sum())
    for name, column in columns.items():
        if not isinstance(name, str):
            raise BatchError(f"column names must be strings, got {name!r}")
        if name in (Columns.INFOS, Columns.SEQ_LENS) or name.startswith(("state_in_", "state_out_")):
            continue
        leaves = flatten_struct(column)
        if leaves and (n := _length(leaves[0][1])):
            return n
    return 0


def _length(leaf: Any) -> int:
    shape = getattr(leaf, "shape", ())
    return shape[0] if shape else 0
