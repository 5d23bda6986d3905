"""Batches of steps as RLlib's old API stack has them, for processes in which RLlib is not installed.

Classes, columns and results are those of `ray.rllib.policy.sample_batch`; docs/old_stack.md tells what differs.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from numbers import Number
from typing import Any, Self

import numpy as np

from fastmarl.core.columns import Columns
from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.legacy.batches.batch_columns import (
    STATE_IN,
    copy_of,
    count_steps,
    is_of_sequences,
    joined,
    objects,
    of_rows,
    unpacked,
)
from fastmarl.legacy.batches.packing import pack

DEFAULT_POLICY_ID = "default_policy"
DONES = "dones"

OBSERVATIONS = frozenset({Columns.OBS, Columns.NEXT_OBS})


class SampleBatch(dict[str, Any]):
    """Steps of one policy: column name -> array or tensor [n, ...], or dicts and tuples of such; "infos" may be a list.

    Of recurrent policies, the steps are cut into q sequences: "seq_lens" int32 [q] has their lengths, "state_in_0" and
    so on [q, ...] the states before them.

    Args:
        args, kwargs: those of `dict`. Lists become arrays.
        _time_major: whether the first axis is time and the second one sequences; batches are joined along the second.
        _max_seq_len: steps to which sequences are padded; None: those of the longest.
        _zero_padded: whether they are: columns have `_max_seq_len` rows for each sequence.
        _is_training: whether somebody learns from the batch.
        _num_grad_updates: of the policy, before it acted.

    Attributes:
        count: n, without padding.
        time_major, max_seq_len, zero_padded, is_training, num_grad_updates: see there.

    Raises:
        KeyError: a column is named "dones": `batch["dones"]` is "terminateds".
    """

    OBS = CUR_OBS = Columns.OBS
    NEXT_OBS = Columns.NEXT_OBS
    ACTIONS = Columns.ACTIONS
    REWARDS = Columns.REWARDS
    TERMINATEDS = Columns.TERMINATEDS
    TRUNCATEDS = Columns.TRUNCATEDS
    DONES = DONES
    INFOS = Columns.INFOS
    SEQ_LENS = Columns.SEQ_LENS
    EPS_ID = Columns.EPS_ID
    UNROLL_ID = "unroll_id"
    AGENT_INDEX = "agent_index"
    ENV_ID = "env_id"
    T = "t"
    ACTION_DIST_INPUTS = Columns.ACTION_DIST_INPUTS
    ACTION_LOGP = Columns.ACTION_LOGP
    ACTION_PROB = "action_prob"
    VF_PREDS = Columns.VF_PREDS
    VALUES_BOOTSTRAPPED = "values_bootstrapped"
    PREV_ACTIONS = "prev_actions"
    PREV_REWARDS = "prev_rewards"

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
        self.count = count_steps(self)

    # Columns.

    def __getitem__(self, key: Any) -> Any:
        """The column of this name; or, for a slice of steps, a batch of these, without copying. Of recurrent policies
        that has whole sequences: from the one in which the slice begins to the one before that in which it ends.
        """
        if isinstance(key, slice):
            return self._part(*key.indices(self.count))
        return super().__getitem__(Columns.TERMINATEDS if key == DONES else key)

    def __setitem__(self, key: str, item: Any) -> None:
        if key == DONES:
            raise _no_dones()
        super().__setitem__(key, item)

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def columns(self, keys: Sequence[str]) -> list[Any]:
        """Those of these names."""
        return [self[key] for key in keys]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Column name -> entry, step by step; "seq_lens" is 1 then, and states of sequences are left out."""
        columns = {name: column for name, column in self.items() if not is_of_sequences(name)}
        of_all = {Columns.SEQ_LENS: 1} if Columns.SEQ_LENS in self else {}
        for i in range(self.count):
            yield {**{name: of_rows(column, i) for name, column in columns.items()}, **of_all}

    # Counts.

    def __len__(self) -> int:
        """`count`"""
        return self.count

    def agent_steps(self) -> int:
        """`count`"""
        return self.count

    def env_steps(self) -> int:
        """`count`"""
        return self.count

    def size_bytes(self) -> int:
        """Of all arrays and tensors."""
        return sum(getattr(leaf, "nbytes", 0) for column in self.values() for _, leaf in flatten_struct(column))

    def is_terminated_or_truncated(self) -> bool:
        """Whether the last step ended its episode."""
        return bool(self._ends()[-1])

    def is_single_trajectory(self) -> bool:
        """Whether no step but the last one ended an episode."""
        return not self._ends()[:-1].any()

    def _ends(self) -> np.ndarray:
        """bool [n]"""
        ends = np.asarray(self[Columns.TERMINATEDS], bool)
        return ends | np.asarray(self[Columns.TRUNCATEDS], bool) if Columns.TRUNCATEDS in self else ends

    def set_training(self, training: bool = True) -> None:
        """Set `is_training`."""
        self.is_training = training

    # Other batches, of this one's steps.

    def as_multi_agent(self, module_id: str | None = None) -> "MultiAgentBatch":
        """This batch as that of one policy, "default_policy" unless another is named."""
        return MultiAgentBatch({module_id or DEFAULT_POLICY_ID: self}, self.count)

    def copy(self, shallow: bool = False) -> Self:
        """Another batch; with copies of the arrays, unless `shallow`."""
        columns = dict(self) if shallow else {name: copy_of(column) for name, column in self.items()}
        return self._like(columns, zero_padded=self.zero_padded, max_seq_len=self.max_seq_len)

    def concat(self, other: "SampleBatch") -> "SampleBatch":
        """A batch of both, see `concat_samples()`."""
        return concat_samples([self, other])

    def slice(self, start: int, end: int, state_start: int | None = None, state_end: int | None = None) -> Self:
        """The steps from `start` to `end`, without copying.

        Args:
            start, end: steps, 0 or more.
            state_start, state_end: of recurrent policies, the sequences that these steps are in; the last one may end
                within. None: they are looked for, and the first one may begin within, too: its state is that before its
                whole.

        Raises:
            BatchError: a negative step, or the sequences are padded.
        """
        if start < 0 or self.zero_padded:
            raise BatchError("slice() takes steps from 0 on of sequences that are not padded")
        steps = slice(start, min(end, self.count))
        if Columns.SEQ_LENS not in self:
            return self._like({name: of_rows(column, steps) for name, column in self.items()})
        ends = np.cumsum(self[Columns.SEQ_LENS])
        if state_start is None:
            state_start = int(np.searchsorted(ends, steps.start, "right"))
            state_end = int(np.searchsorted(ends, steps.stop, "left")) + 1
        edges = np.clip([steps.start, *ends[state_start:state_end]], steps.start, steps.stop)
        sequences = slice(state_start, state_end)
        columns = {name: of_rows(c, sequences if is_of_sequences(name) else steps) for name, c in self.items()}
        return self._like({**columns, Columns.SEQ_LENS: np.diff(edges).astype(np.int32)})

    def _part(self, begin: int, end: int, step: int) -> Self:
        if step != 1:
            raise BatchError(f"batches are sliced with step 1, got {step}")
        if Columns.SEQ_LENS not in self:
            return self._like({name: of_rows(column, slice(begin, end)) for name, column in self.items()})
        ends = np.cumsum(np.asarray(self[Columns.SEQ_LENS]))
        first, after = np.searchsorted(ends, [begin, end], "right").tolist()
        edges = np.concatenate(([0], ends))
        if self.zero_padded:
            edges = np.arange(len(edges)) * self._padded_length()
        rows, sequences = slice(edges[first], edges[after]), slice(first, after)
        columns = {name: of_rows(c, sequences if is_of_sequences(name) else rows) for name, c in self.items()}
        padded_to = self.max_seq_len if self.zero_padded else None
        return self._like(columns, self.zero_padded, padded_to)

    def _like(self, columns: Mapping[str, Any], zero_padded: bool = False, max_seq_len: int | None = None) -> Self:
        return type(self)(
            columns,
            _time_major=self.time_major,
            _max_seq_len=max_seq_len,
            _zero_padded=zero_padded,
            _is_training=self.is_training,
            _num_grad_updates=self.num_grad_updates,
        )

    def _padded_length(self) -> int:
        """Rows of a padded sequence."""
        if self.max_seq_len is None:
            raise BatchError("padded sequences need a max_seq_len")
        return self.max_seq_len

    def timeslices(self, size: int | None = None, num_slices: int | None = None, k: int | None = None) -> list[Self]:
        """Pieces of `size` steps, the last one shorter; or so many pieces, of which later ones may have a step more.

        Args:
            k: the old name of `size`.
        """
        if num_slices is not None and num_slices >= 1:
            length, n_longer = divmod(self.count, num_slices)
            n_shorter = num_slices - n_longer
            edges = [i * length + max(0, i - n_shorter) for i in range(num_slices + 1)]
        else:
            length = size or k or 0
            if length < 1:
                raise BatchError("timeslices() needs a size or num_slices of at least 1")
            edges = [*range(0, self.count, length), self.count]
        return [self[begin:end] for begin, end in pairwise(edges)]

    def split_by_episode(self, key: str | None = None) -> list[Self]:
        """A batch for each episode, in order.

        Args:
            key: "eps_id": an episode goes on as long as that is the same. "dones": it ends with a step that terminated
                or truncated it. None: "eps_id" if there is such a column.
        """
        if key not in (None, Columns.EPS_ID, DONES):
            raise BatchError(f'split_by_episode() takes the keys "{Columns.EPS_ID}" and "{DONES}", got {key!r}')
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
        """Bring the steps, or padded sequences, into another order, drawn from NumPy's global generator.

        Raises:
            BatchError: there are sequences that are not padded.
        """
        if Columns.SEQ_LENS not in self:
            order = np.random.permutation(self.count)  # noqa: NPY002, as RLlib draws
            self.update({name: of_rows(column, order) for name, column in self.items()})
            return self
        if not self.zero_padded:
            raise BatchError("sequences can't be shuffled until they are padded; call right_zero_pad() before")
        order = np.random.permutation(len(self[Columns.SEQ_LENS]))  # noqa: NPY002
        length = self._padded_length()
        rows = (order[:, None] * length + np.arange(length)).ravel()
        self.update({name: of_rows(c, order if is_of_sequences(name) else rows) for name, c in self.items()})
        return self

    def right_zero_pad(self, max_seq_len: int, exclude_states: bool = True) -> Self:
        """Pad all sequences to so many steps with zeros, or None in columns of objects.

        Args:
            exclude_states: leave "state_in_0" and so on as they are; else they have an entry for each step.

        Raises:
            BatchError: there are no sequences, or longer ones.
        """
        if Columns.SEQ_LENS not in self:
            raise BatchError(f'right_zero_pad() needs the column "{Columns.SEQ_LENS}"')
        lengths = np.asarray(self[Columns.SEQ_LENS])
        if lengths.max() > max_seq_len:
            raise BatchError(f"a sequence of {lengths.max()} steps can't be padded to max_seq_len={max_seq_len}")
        steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = np.repeat(np.arange(len(lengths)) * max_seq_len, lengths) + steps

        def padded(leaf: Any) -> np.ndarray:
            values = objects(leaf) if isinstance(leaf, list) else np.asarray(leaf)
            empty = None if values.dtype == object else np.zeros((), values.dtype)
            whole = np.full((len(lengths) * max_seq_len, *values.shape[1:]), empty)
            whole[rows] = values
            return whole

        for name, column in self.items():
            if name != Columns.SEQ_LENS and not (exclude_states and name.startswith(STATE_IN)):
                self[name] = padded(column) if isinstance(column, list) else map_struct(padded, column)
        self.zero_padded, self.max_seq_len = True, max_seq_len
        return self

    def compress(self, bulk: bool = False, columns: Collection[str] = OBSERVATIONS) -> Self:
        """Pack these columns, step by step or, with `bulk`, each as a whole."""

        def packed(leaf: Any) -> Any:
            return pack(leaf) if bulk else np.array([pack(entry) for entry in leaf])

        self.update({name: map_struct(packed, column) for name, column in self.items() if name in columns})
        return self

    def decompress_if_needed(self, columns: Collection[str] = OBSERVATIONS) -> Self:
        """Unpack those of these columns that are packed."""
        self.update({name: map_struct(unpacked, column) for name, column in self.items() if name in columns})
        return self

    def __repr__(self) -> str:
        names = [name for name in self if name != Columns.SEQ_LENS]
        sequences = f" (seqs={len(self[Columns.SEQ_LENS])})" if Columns.SEQ_LENS in self else ""
        return f"SampleBatch({self.count}{sequences}: {names})"


class MultiAgentBatch:
    """Steps of several policies.

    Args:
        policy_batches: policy id -> SampleBatch.
        env_steps: of the envs, in which each agent took a step at most.

    Attributes:
        policy_batches, count: these.
    """

    def __init__(self, policy_batches: dict[str, SampleBatch], env_steps: int):
        for policy_id, batch in policy_batches.items():
            if not isinstance(batch, SampleBatch):
                raise BatchError(f"expected SampleBatches by policy id, got {type(batch).__name__} for {policy_id!r}")
        self.policy_batches, self.count = policy_batches, env_steps

    def __getitem__(self, key: str) -> SampleBatch:
        """The batch of a policy."""
        return self.policy_batches[key]

    def __len__(self) -> int:
        """`count`"""
        return self.count

    def env_steps(self) -> int:
        """`count`"""
        return self.count

    def agent_steps(self) -> int:
        """Of all agents together."""
        return sum(batch.count for batch in self.policy_batches.values())

    def size_bytes(self) -> int:
        """Of all arrays."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def as_multi_agent(self) -> Self:
        """The batch itself."""
        return self

    @staticmethod
    def wrap_as_needed(policy_batches: dict[str, SampleBatch], env_steps: int) -> "SampleBatch | MultiAgentBatch":
        """The batch of "default_policy" if there is no other; else a MultiAgentBatch."""
        if list(policy_batches) == [DEFAULT_POLICY_ID]:
            return policy_batches[DEFAULT_POLICY_ID]
        return MultiAgentBatch(policy_batches, env_steps)

    def copy(self) -> "MultiAgentBatch":
        """Another batch, with copies of the arrays."""
        return MultiAgentBatch({id_: batch.copy() for id_, batch in self.policy_batches.items()}, self.count)

    def timeslices(self, k: int) -> "list[MultiAgentBatch]":
        """Batches of k env steps each, the last one shorter: all agents' steps with the same "eps_id" and "t".

        Raises:
            BatchError: a policy is recurrent, or k is less than 1.
        """
        if k < 1:
            raise BatchError(f"timeslices() needs a k of at least 1, got {k}")
        keys = {}
        for policy_id, batch in self.policy_batches.items():
            if Columns.SEQ_LENS in batch:
                raise BatchError(f"the batch of policy {policy_id!r} has sequences, which can't be cut into env steps")
            keys[policy_id] = np.stack([np.asarray(c) for c in batch.columns([Columns.EPS_ID, SampleBatch.T])], axis=1)
        env_steps = np.unique(np.concatenate(list(keys.values())), axis=0)
        step_of = {tuple(step): number for number, step in enumerate(env_steps.tolist())}
        pieces: list[dict[str, SampleBatch]] = [{} for _ in range(0, len(env_steps), k)]
        for policy_id, batch in self.policy_batches.items():
            number_N = np.array([step_of[tuple(step)] for step in keys[policy_id].tolist()], np.int64)
            order = np.lexsort((np.asarray(batch[SampleBatch.AGENT_INDEX]), number_N))
            piece_N = number_N[order] // k
            for piece in np.unique(piece_N).tolist():
                rows = order[piece_N == piece]
                pieces[piece][policy_id] = SampleBatch({name: of_rows(c, rows) for name, c in batch.items()})
        last = len(env_steps) - k * (len(pieces) - 1)
        return [MultiAgentBatch(piece, last if piece is pieces[-1] else k) for piece in pieces]

    def compress(self, bulk: bool = False, columns: Collection[str] = OBSERVATIONS) -> None:
        """See `SampleBatch.compress()`."""
        for batch in self.policy_batches.values():
            batch.compress(bulk, columns)

    def decompress_if_needed(self, columns: Collection[str] = OBSERVATIONS) -> Self:
        """See `SampleBatch.decompress_if_needed()`."""
        for batch in self.policy_batches.values():
            batch.decompress_if_needed(columns)
        return self

    def __repr__(self) -> str:
        return f"MultiAgentBatch({self.policy_batches}, env_steps={self.count})"


def concat_samples(samples: Sequence[Any]) -> Any:
    """Batches, one after the other; empty ones are left out.

    Args:
        samples: SampleBatches, or MultiAgentBatches, with which a SampleBatch is one of "default_policy".

    Returns:
        SampleBatch with the columns of the first batch and the mean of `num_grad_updates`, by steps; MultiAgentBatch if
        one is among the batches.

    Raises:
        BatchError: one has other columns or kinds of columns than the first, or is padded otherwise.
    """
    if any(isinstance(batch, MultiAgentBatch) for batch in samples):
        return _concat_multi_agent([batch.as_multi_agent() for batch in samples if len(batch)])
    batches: list[SampleBatch] = [batch for batch in samples if batch.count]
    if not batches:
        return SampleBatch()
    first = batches[0]
    for batch in batches:
        _check_like(batch, first)
    axis = 1 if first.time_major else 0
    columns = {
        name: joined(name, [batch[name] for batch in batches], axis) for name in first if name != Columns.SEQ_LENS
    }
    if Columns.SEQ_LENS in first:
        columns[Columns.SEQ_LENS] = np.concatenate([batch[Columns.SEQ_LENS] for batch in batches]).astype(np.int32)
    longest = None if first.max_seq_len is None else max(batch.max_seq_len or 0 for batch in batches)
    known = [(batch.num_grad_updates, batch.count) for batch in batches if batch.num_grad_updates is not None]
    return SampleBatch(
        columns,
        _time_major=first.time_major,
        _zero_padded=first.zero_padded,
        _max_seq_len=longest,
        _num_grad_updates=sum(number * count for number, count in known) / (sum(count for _, count in known) or 1),
    )


def _concat_multi_agent(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
    by_policy: defaultdict[str, list[SampleBatch]] = defaultdict(list)
    for batch in batches:
        for policy_id, of_policy in batch.policy_batches.items():
            by_policy[policy_id].append(of_policy)
    of_policies = {policy_id: concat_samples(of_policy) for policy_id, of_policy in by_policy.items()}
    return MultiAgentBatch(of_policies, sum(batch.count for batch in batches))


def _check_like(batch: SampleBatch, first: SampleBatch) -> None:
    if missing := [name for name in first if name not in batch]:
        raise BatchError(f"expected batches with the columns of the first one, {list(first)}; one lacks {missing}")
    padded_to = [(each.zero_padded, each.time_major, each.max_seq_len is None) for each in (first, batch)]
    if padded_to[0] != padded_to[1] or (first.zero_padded and first.max_seq_len != batch.max_seq_len):
        raise BatchError("expected batches that are padded alike; zero_padded, time_major and max_seq_len are "
                         f"{first.zero_padded}, {first.time_major} and {first.max_seq_len} in the first one, "
                         f"{batch.zero_padded}, {batch.time_major} and {batch.max_seq_len} in another")  # fmt: skip


def _no_dones() -> KeyError:
    return KeyError(f'"{DONES}" can\'t be set; set "{Columns.TERMINATEDS}" and "{Columns.TRUNCATEDS}"')
