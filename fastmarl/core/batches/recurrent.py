"""Converts episodes to padded sequences per module, for recurrent learners.

Axes in names: S trajectory, N step, B sequence, T step of a sequence.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fastmarl.core.batches.flat import Batch
from fastmarl.core.batches.trajectories import RECORDED, Trajectories, by_module, names_of
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.columns import Columns, Recorded, recorded_name
from fastmarl.core.spaces.structs import flatten_struct, map_struct


def sequences(
    episodes: Iterable[MultiAgentEpisode],
    *,
    max_seq_len: int,
    burn_in: int = 0,
    outputs: Iterable[str] | None = None,
    extra_columns: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Batch]:
    """Convert episodes to b sequences per module, of T = burn_in + max_seq_len steps each, zero-padded at the end.

    Each trajectory is cut into sequences of `max_seq_len` agent steps; the last one may be shorter. Sequences are
    ordered as in `columns()`. Each sequence is preceded by up to `burn_in` earlier steps from the chunk and its
    lookback; these warm up the recurrent state and are excluded from the loss.

    - "obs", "actions", "rewards", "terminateds", "truncateds", each of `outputs`, and "action_mask" if masks were
      recorded: [b, T, ...], as in `columns()`.
    - "seq_lens": int64 [b], number of steps without padding, including burn-in.
    - "loss_mask": bool [b, T], False in burn-in and padding.
    - "state_in" [b, ...], nested like the state of the module: the recurrent state at the first step of each sequence,
      including burn-in; "state_out": the state after the last step of each sequence. Only for recurrent modules.
    - "final_obs" [b, ...]: the observation after the last step of each sequence.
    - "eps_id", "agent_id": object [b].

    Args:
        episodes: Chunks as returned by `sample()`.
        max_seq_len: Number of steps per sequence, without burn-in.
        burn_in: Maximum number of burn-in steps.
        outputs: Names of recorded outputs. None means all except "state_in", "state_out", and names of other columns.
        extra_columns: Module id -> name -> array [n, ...] (or nested arrays) with the rows of `columns(episodes)`, such
            as advantages. They are 0 in lookback steps.

    Returns:
        Module id -> name -> column.

    Raises:
        BatchError: If an output was not recorded; if agents of a module have different spaces; if an extra column has
            the wrong length or belongs to a module without steps; or if a sequence starts with a randomly chosen
            action, which has no recurrent state.
    """
    if max_seq_len < 1 or burn_in < 0:
        raise BatchError(f"expected max_seq_len >= 1 and burn_in >= 0, got {max_seq_len} and {burn_in}")
    batches, outputs, extra_columns = {}, names_of(outputs), extra_columns or {}
    for module_id, trajectories in by_module(episodes).items():
        cuts = _cut(trajectories, max_seq_len, burn_in)
        batches[module_id] = _recorded(trajectories, cuts, outputs) | _states(trajectories, cuts)
        for name, column in extra_columns.get(module_id, {}).items():
            batches[module_id][name] = _extra(trajectories, cuts, name, column)
    if lost := [module_id for module_id, named in extra_columns.items() if named and module_id not in batches]:
        raise BatchError(f"extra_columns has modules {lost}, which have no steps in these episodes (modules: "
                         f"{list(batches)}); build it from columns(episodes)")  # fmt: skip
    return batches


@dataclass
class _Cuts:
    """Positions of the sequences in the trajectories."""

    trajectory_B: np.ndarray
    first_B: np.ndarray  # position of the first step, including burn-in
    length_B: np.ndarray
    step_BT: np.ndarray  # positions of the steps; padding repeats the first step of the sequence
    is_step_BT: np.ndarray
    in_loss_BT: np.ndarray

    @cached_property
    def padding(self) -> np.ndarray:
        """Indices of padding in the B * T steps."""
        return np.flatnonzero(~self.is_step_BT)

    @property
    def last_B(self) -> np.ndarray:
        return self.first_B + self.length_B - 1

    def zero_padding(self, leaf: np.ndarray) -> np.ndarray:
        """Zero the padding of an array [B * T, ...], and reshape it to [B, T, ...]."""
        leaf[self.padding] = 0
        return leaf.reshape(*self.step_BT.shape, *leaf.shape[1:])


def _cut(trajectories: Trajectories, max_seq_len: int, burn_in: int) -> _Cuts:
    n_S = -(-trajectories.length_S // max_seq_len)
    trajectory_B = np.repeat(np.arange(len(n_S)), n_S)
    index_B = np.arange(len(trajectory_B)) - np.repeat(np.cumsum(n_S) - n_S, n_S)
    before_B = index_B * max_seq_len  # steps of the trajectory before the sequence, without the lookback
    learned_B = np.minimum(max_seq_len, trajectories.length_S[trajectory_B] - before_B)
    burned_B = np.minimum(burn_in, trajectories.lookback_S[trajectory_B] + before_B)
    first_B = trajectories.first_S[trajectory_B] + before_B - burned_B
    length_B = burned_B + learned_B
    t = np.arange(burn_in + max_seq_len)
    is_step_BT = t < length_B[:, None]
    step_BT = first_B[:, None] + np.where(is_step_BT, t, 0)
    return _Cuts(trajectory_B, first_B, length_B, step_BT, is_step_BT, is_step_BT & (t >= burned_B[:, None]))


def _recorded(trajectories: Trajectories, cuts: _Cuts, outputs: Collection[str] | None) -> Batch:
    steps = cuts.step_BT.reshape(-1)
    columns = trajectories.read_all([*RECORDED, *trajectories.wanted_outputs(outputs)], steps)
    batch = {name: map_struct(cuts.zero_padding, column) for name, column in columns.items()}
    trajectory_B, last_B = cuts.trajectory_B, cuts.last_B
    is_end_B = last_B == trajectories.last_S[trajectory_B]
    for name, ended_S in trajectories.ended_S.items():
        batch[name] = np.zeros(cuts.step_BT.shape, bool)
        batch[name][np.arange(len(last_B)), cuts.length_B - 1] = is_end_B & ended_S[trajectory_B]
    batch[Columns.SEQ_LENS] = cuts.length_B
    batch[Columns.LOSS_MASK] = cuts.in_loss_BT
    batch[Columns.FINAL_OBS] = trajectories.obs_after(last_B)
    return batch | {name: id_S[trajectory_B] for name, id_S in trajectories.ids().items()}


def _states(trajectories: Trajectories, cuts: _Cuts) -> Batch:
    """Return the recurrent states before and after each sequence, if there are any."""
    name = recorded_name(Recorded.STATE_IN, trajectories.output_keys())
    if name not in trajectories.output_keys():
        return {}
    state_in = trajectories.read(name, cuts.first_B)
    for _, leaf in flatten_struct(state_in):
        unknown = np.isnan(leaf.reshape(len(leaf), -1)).any(1) if leaf.dtype.kind == "f" else np.zeros(0, bool)
        if unknown.any():
            index = int(cuts.trajectory_B[np.flatnonzero(unknown)[0]])
            agent_id, episode_id = trajectories.agent_ids[index], trajectories.episode_ids[index]
            raise BatchError(f"agent {agent_id!r}, episode {episode_id!r}: a sequence starts with an action chosen at "
                             f"random or by a module without memory, so it has no recurrent state; exclude such "
                             f"episodes, and pass force_reset=True to the next sample()")  # fmt: skip
    return {
        Columns.STATE_IN: state_in,
        Columns.STATE_OUT: trajectories.read(Columns.STATE_OUT, cuts.last_B),
    }


def _extra(trajectories: Trajectories, cuts: _Cuts, name: str, column: Any) -> Any:
    """Cut a flat column into the same sequences as the recorded columns."""
    n = int(trajectories.length_S.sum())
    before_S = np.cumsum(trajectories.length_S) - trajectories.length_S
    row_BT = cuts.step_BT + (before_S - trajectories.first_S)[cuts.trajectory_B][:, None]
    is_known_BT = cuts.is_step_BT & (row_BT >= before_S[cuts.trajectory_B][:, None])

    def cut(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        if leaf.shape[:1] != (n,):
            raise BatchError(f"expected {n} rows in the extra column {name!r}, as in columns(episodes), got an array "
                             f"of shape {leaf.shape}")  # fmt: skip
        rows = leaf.take(row_BT.reshape(-1), 0, mode="clip").reshape(*row_BT.shape, *leaf.shape[1:])
        rows[~is_known_BT] = 0
        return rows

    return map_struct(cut, column)
