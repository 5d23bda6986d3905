"""The batches of the old RLlib API stack, without RLlib.

Classes, columns and results match `ray.rllib.policy.sample_batch`; docs/old_stack.md lists the differences.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch

from fastmarl.core.errors import BatchError
from fastmarl.core.objects.public import public
from fastmarl.core.objects.rllib_classes import is_of_rllib, rllib_class
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.legacy.batches.packing import is_packed
from fastmarl.legacy.batches.step_columns import DONES, OBSERVATIONS, StepColumns, marks_of, of_rows

RLLIB_MODULE = "policy.sample_batch"

DEFAULT_POLICY_ID = "default_policy"


@public("fastmarl.legacy")
class SampleBatch(StepColumns):
    """Steps of a policy: column name -> array or tensor [n, ...], or nested dicts and tuples; "infos" may be a list.

    Steps of a recurrent policy are split into q sequences: "seq_lens", int32 [q], contains their lengths, and
    "state_in_0" and so on, [q, ...], the recurrent states before their first steps.

    Args:
        args: The arguments of `dict`. Lists become arrays.
        kwargs: Column name -> additional column.
        _time_major: If True, the first axis is time and the second is sequences; batches are concatenated along the
            second.
        _max_seq_len: Number of steps to which sequences are padded; None for the length of the longest one.
        _zero_padded: True if sequences are padded, so that columns have `_max_seq_len` rows per sequence.
        _is_training: True if the batch is for training a policy.
        _num_grad_updates: Number of policy updates before these steps were taken.

    Attributes:
        count: Number of steps n, without padding.
        time_major, max_seq_len, zero_padded, is_training, num_grad_updates: The constructor arguments.
        accessed_keys, added_keys, deleted_keys: Names of columns that were read, added and deleted with `batch[name]`
            since the batch was created.
        get_interceptor, intercepted_values: The function set with `set_get_interceptor()`, and its results per column.

    Raises:
        KeyError: If a column is named "dones", which is reserved: `batch["dones"]` returns "terminateds".
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
    ACTION_DIST = "action_dist"
    ATTENTION_MASKS = "attention_masks"
    OBS_EMBEDS = "obs_embeds"
    RETURNS_TO_GO = "returns_to_go"

    def as_multi_agent(self, module_id: str | None = None) -> "MultiAgentBatch":
        """Return a MultiAgentBatch with this batch under `module_id`, or under "default_policy"."""
        return MultiAgentBatch({module_id or DEFAULT_POLICY_ID: self}, self.count)

    def concat(self, other: "SampleBatch") -> "SampleBatch":
        """Concatenate this batch and `other`; see `concat_samples()`."""
        return concat_samples([self, other])

    def to_rllib(self) -> Any:
        """Convert to an RLlib SampleBatch that shares the arrays, for code that requires that class.

        Raises:
            ImportError: If RLlib is not installed.
        """
        return rllib_class(RLLIB_MODULE, "SampleBatch")(dict(self), **marks_of(self))


@public("fastmarl.legacy")
class MultiAgentBatch:
    """Steps of several policies.

    Args:
        policy_batches: Policy id -> SampleBatch.
        env_steps: Number of env steps; an agent takes at most one step in each.

    Attributes:
        policy_batches: The argument `policy_batches`.
        count: Number of env steps.
    """

    def __init__(self, policy_batches: dict[str, SampleBatch], env_steps: int):
        for policy_id, batch in policy_batches.items():
            if not isinstance(batch, SampleBatch):
                raise BatchError(f"expected policy id -> fastmarl.legacy.SampleBatch, got {_class_of(batch)} for "
                                 f"{policy_id!r}; convert it with SampleBatch(batch)")  # fmt: skip
        self.policy_batches, self.count = policy_batches, env_steps

    def __getitem__(self, key: str) -> SampleBatch:
        """Return the batch of a policy."""
        return self.policy_batches[key]

    def __len__(self) -> int:
        return self.count

    def env_steps(self) -> int:
        """Return `count`, the number of env steps."""
        return self.count

    def agent_steps(self) -> int:
        """Return the number of steps of all agents."""
        return sum(batch.count for batch in self.policy_batches.values())

    def size_bytes(self) -> int:
        """Return the size of all arrays in bytes."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def as_multi_agent(self) -> Self:
        """Return the batch itself, which is already a MultiAgentBatch."""
        return self

    @staticmethod
    def wrap_as_needed(policy_batches: dict[str, SampleBatch], env_steps: int) -> "SampleBatch | MultiAgentBatch":
        """Return the batch of "default_policy" if that is the only policy, else a MultiAgentBatch.

        Args:
            policy_batches: Policy id -> SampleBatch.
            env_steps: Number of env steps.
        """
        if list(policy_batches) == [DEFAULT_POLICY_ID]:
            return policy_batches[DEFAULT_POLICY_ID]
        return MultiAgentBatch(policy_batches, env_steps)

    def to_rllib(self) -> Any:
        """Convert to an RLlib MultiAgentBatch; see `SampleBatch.to_rllib()`."""
        batches = {policy_id: batch.to_rllib() for policy_id, batch in self.policy_batches.items()}
        return rllib_class(RLLIB_MODULE, "MultiAgentBatch")(batches, self.count)

    def copy(self) -> "MultiAgentBatch":
        """Return a copy with separate arrays."""
        return MultiAgentBatch({id_: batch.copy() for id_, batch in self.policy_batches.items()}, self.count)

    def timeslices(self, k: int) -> "list[MultiAgentBatch]":
        """Split into batches of k env steps each; the last one may be shorter.

        An env step consists of all agent steps with the same "eps_id" and "t".

        Raises:
            BatchError: If a policy is recurrent, or k is less than 1.
        """
        if k < 1:
            raise BatchError(f"k must be a positive integer, got {k}")
        keys = {}
        for policy_id, batch in self.policy_batches.items():
            if Columns.SEQ_LENS in batch:
                raise BatchError(f"the batch of policy {policy_id!r} has sequences, which can't be split by env step")
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
        """Pack `columns` of all policies in place, as entire columns if `bulk`; see `SampleBatch.compress()`."""
        for batch in self.policy_batches.values():
            batch.compress(bulk, columns)

    def to_device(
        self,
        device: Any,
        framework: str = "torch",
        pin_memory: bool = False,
        use_stream: bool = False,
        stream: Any = None,
    ) -> Self:
        """Move the batches of all policies to a device with `SampleBatch.to_device()`.

        `device`, `framework`, `pin_memory`, `use_stream` and `stream` are its arguments.
        """
        for batch in self.policy_batches.values():
            batch.to_device(device, framework, pin_memory, use_stream, stream)
        return self

    def decompress_if_needed(self, columns: Collection[str] = OBSERVATIONS) -> Self:
        """Unpack `columns` of all policies in place; see `SampleBatch.decompress_if_needed()`."""
        for batch in self.policy_batches.values():
            batch.decompress_if_needed(columns)
        return self

    def __repr__(self) -> str:
        return f"MultiAgentBatch({self.policy_batches}, env_steps={self.count})"


def from_rllib(batch: Any) -> Any:
    """Convert an RLlib batch to the fastmarl class, sharing the arrays; return anything else unchanged."""
    if not is_of_rllib(type(batch)):
        return batch
    if hasattr(batch, "policy_batches"):
        batches = {policy_id: from_rllib(of_policy) for policy_id, of_policy in batch.policy_batches.items()}
        return MultiAgentBatch(batches, batch.count)
    return SampleBatch(dict(batch), **marks_of(batch))


def concat_samples(samples: Sequence[Any]) -> Any:
    """Concatenate batches, leaving out empty ones.

    Args:
        samples: SampleBatches and MultiAgentBatches. If both types occur, the SampleBatches belong to "default_policy".

    Returns:
        A MultiAgentBatch if any batch is one. Otherwise a SampleBatch with the columns of the first batch and the mean
        of `num_grad_updates`, weighted by steps.

    Raises:
        BatchError: If a batch differs from the first one in columns, column kinds, or padding; or an item is not a
            batch.
    """
    for batch in samples:
        if not isinstance(batch, SampleBatch | MultiAgentBatch):
            raise BatchError(f"expected a SampleBatch or MultiAgentBatch of fastmarl.legacy, got {_class_of(batch)}; "
                             f"convert it with SampleBatch(batch)")  # fmt: skip
    if any(isinstance(batch, MultiAgentBatch) for batch in samples):
        return _concat_multi_agent([batch.as_multi_agent() for batch in samples if len(batch)])
    batches: list[SampleBatch] = [batch for batch in samples if batch.count]
    if not batches:
        return SampleBatch()
    return _concatenated(batches)


def _concatenated(batches: Sequence[SampleBatch]) -> SampleBatch:
    first = batches[0]
    for batch in batches:
        _check_like(batch, first)
    axis = 1 if first.time_major else 0
    columns = {
        name: _joined(name, [batch[name] for batch in batches], axis) for name in first if name != Columns.SEQ_LENS
    }
    if Columns.SEQ_LENS in first:
        columns[Columns.SEQ_LENS] = np.concatenate([batch[Columns.SEQ_LENS] for batch in batches]).astype(np.int32)
    known = [(batch.num_grad_updates, batch.count) for batch in batches if batch.num_grad_updates is not None]
    return SampleBatch(
        columns,
        _time_major=first.time_major,
        _zero_padded=first.zero_padded,
        _max_seq_len=None if first.max_seq_len is None else max(batch.max_seq_len or 0 for batch in batches),
        _num_grad_updates=sum(number * count for number, count in known) / (sum(count for _, count in known) or 1),
    )


def _check_like(batch: SampleBatch, first: SampleBatch) -> None:
    if missing := [name for name in first if name not in batch]:
        raise BatchError(f"all batches must have the columns of the first one, {list(first)}; one has no {missing}")
    padded_to = [(each.zero_padded, each.time_major, each.max_seq_len is None) for each in (first, batch)]
    if padded_to[0] != padded_to[1] or (first.zero_padded and first.max_seq_len != batch.max_seq_len):
        raise BatchError("all batches must be padded in the same way; zero_padded, time_major and max_seq_len are "
                         f"{first.zero_padded}, {first.time_major} and {first.max_seq_len} in the first one, "
                         f"{batch.zero_padded}, {batch.time_major} and {batch.max_seq_len} in another")  # fmt: skip


def _joined(name: str, columns: Sequence[Any], axis: int) -> Any:
    """Concatenate the columns `name` of several batches along `axis`."""
    if isinstance(columns[0], list):
        return [entry for column in columns for entry in column]
    if isinstance(columns[0], dict | tuple):
        leaves = [dict(flatten_struct(column)) for column in columns]
        if any(of_one.keys() != leaves[0].keys() for of_one in leaves):
            raise BatchError(f"can't concatenate columns {name!r} with different structures")
        paths = iter(leaves[0])
        return map_struct(lambda _: _joined(name, _column_of(leaves, next(paths)), axis), columns[0])
    if isinstance(columns[0], torch.Tensor):
        return torch.cat(list(columns), dim=axis)
    if is_packed(columns[0]):
        raise BatchError(f"can't concatenate packed columns {name!r}; call decompress_if_needed() first")
    return np.concatenate(columns, axis=axis)


def _column_of(leaves: Sequence[Mapping[Any, Any]], path: Any) -> list[Any]:
    return [of_one[path] for of_one in leaves]


def _concat_multi_agent(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
    by_policy: defaultdict[str, list[SampleBatch]] = defaultdict(list)
    for batch in batches:
        for policy_id, of_policy in batch.policy_batches.items():
            by_policy[policy_id].append(of_policy)
    of_policies = {policy_id: concat_samples(of_policy) for policy_id, of_policy in by_policy.items()}
    return MultiAgentBatch(of_policies, sum(batch.count for batch in batches))


def _class_of(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
