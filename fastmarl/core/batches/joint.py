"""Episodes as columns aligned by env step, for critics that see all agents of a group at once.

Axes in names: T env step, E chunk, A agent's slot in its group, S trajectory, N step of a trajectory.
"""

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fastmarl.core.batches.agent_episode_table import AgentEpisodeTable
from fastmarl.core.batches.flat import Batch
from fastmarl.core.batches.groups import AgentID, Groups, in_slots, members_of
from fastmarl.core.batches.trajectories import RECORDED, Trajectories, names_of
from fastmarl.core.columns import Columns
from fastmarl.core.episodes.chunk import Unbuilt
from fastmarl.core.episodes.lazy import in_numbers
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.structs import map_struct


def aligned(
    episodes: Iterable[MultiAgentEpisode],
    *,
    groups: Groups | None = None,
    agents: Sequence[AgentID] | None = None,
    outputs: Iterable[str] | None = None,
) -> dict[str, Batch]:
    """Convert episodes to columns by group, aligned by env step: T env steps of E chunks, with A slots for agents.

    Row t of a chunk is env step first_env_t + t. The first row is the chunk's first step, or an earlier one if an agent
    acted there and then waited. Thus every transition is in exactly one row, that of its action.

    - "active": bool [T, E, A], True if the agent acted at this step. All other columns are 0 where it did not: before
      it joined, while it waited, after it ended ("death masking", Yu et al. 2022, "The Surprising Effectiveness of PPO
      in Cooperative Multi-Agent Games"), in empty slots, and after the chunk's end.
    - "obs", "actions", each of `outputs`, and "action_mask" as in `columns()`: [T, E, A, ...].
    - "rewards": float64 [T, E, A].
    - "terminateds", "truncateds": bool [T, E, A], True at an agent's last action if it ended this way.
    - "final_obs" [E, A, ...]: each agent's last observation; "final_t": int64 [E, A], the row in which it arrived.
    - "env_state" [T + 1, E, ...], if the chunks have env states: those of all rows and of the step after the last. All
      groups share this array.
    - "seq_lens": int64 [E], number of rows of each chunk; "first_env_t": int64 [E].
    - "agent_id": object [E, A], None for empty slots.

    Args:
        episodes: Chunks as returned by `sample()`.
        groups: Group -> agents in order of their slots; or a function `(agent_id, episode) -> group`, which returns
            None to leave an agent out; or None to make each module's agents a group.
        agents: All agents, in the order in which slots are assigned unless `groups` is a dict. None means in order of
            appearance in `episodes`, which may differ from call to call.
        outputs: Names of recorded outputs. None means all outputs common to the group's agents, except "state_in",
            "state_out", and names of other columns.

    Returns:
        Group -> name -> column.

    Raises:
        BatchError: If agents of a group have different spaces, an output was not recorded, `agents` lacks an agent that
            has steps, or env states differ in form or exist in some of the chunks only.
    """
    episodes, outputs = list(episodes), names_of(outputs)
    chunks = [*in_numbers(episodes)]
    table = AgentEpisodeTable(chunks)
    members = members_of(table, episodes, groups, agents)
    slots = in_slots(table, members, len(episodes), by_module=groups is None)
    teams = {
        group: _Team(Trajectories(table, place_S), members[group], chunk_S, slot_S)
        for group, (place_S, chunk_S, slot_S) in slots.items()
        if len(place_S)
    }
    first_E, end_E = _times(chunks)
    for team in teams.values():
        np.minimum.at(first_E, team.chunk_S, team.first_env_t_S)
    n_rows_E = end_E - first_E
    shared = {Columns.SEQ_LENS: n_rows_E, Columns.FIRST_ENV_T: first_E}
    states_E = [states for each in chunks for states in _states_of(each)]
    if any(states is not None for states in states_E):
        shared[Columns.ENV_STATE] = _env_states(states_E, first_E, n_rows_E)
    return {group: _columns(team, first_E, n_rows_E, outputs) | shared for group, team in teams.items()}


def _times(chunks: list[Unbuilt | MultiAgentEpisode]) -> tuple[np.ndarray, np.ndarray]:
    """Return env_t_started and env_t of all chunks, each int64 [E]."""
    times = [each.times if isinstance(each, Unbuilt) else [(each.env_t_started, each.env_t)] for each in chunks]
    first_E, end_E = np.concatenate([np.empty((0, 2), np.int64), *times]).T.copy()
    return first_E, end_E


def _states_of(chunks: Unbuilt | MultiAgentEpisode) -> Sequence[np.ndarray | None]:
    return chunks.env_states if isinstance(chunks, Unbuilt) else [chunks.env_states]


class _Team:
    """The trajectories of one group.

    Args:
        ids_EA: See `Members`.
        chunk_S, slot_S: Chunk and slot of each trajectory, int64.
    """

    def __init__(self, trajectories: Trajectories, ids_EA: np.ndarray, chunk_S: np.ndarray, slot_S: np.ndarray):
        self.trajectories, self.ids_EA, self.chunk_S, self.slot_S = trajectories, ids_EA, chunk_S, slot_S
        self.steps = trajectories.steps_after_lookback()
        self.env_t_N = trajectories.env_ts(self.steps)

    @property
    def first_env_t_S(self) -> np.ndarray:
        length_S = self.trajectories.length_S
        return self.env_t_N[np.cumsum(length_S) - length_S]


def _columns(team: _Team, first_E: np.ndarray, n_rows_E: np.ndarray, outputs: Collection[str] | None) -> Batch:
    trajectories, chunk_S = team.trajectories, team.chunk_S
    shape_EA = len(first_E), team.ids_EA.shape[1]
    n_entries, entry_S = math.prod(shape_EA), chunk_S * shape_EA[1] + team.slot_S
    # Row t of a chunk starts at entry t * n_entries.
    before_S = entry_S - first_E[chunk_S] * n_entries
    entry_N = team.env_t_N * n_entries + np.repeat(before_S, trajectories.length_S)
    spread = _Spread((int(n_rows_E.max()), *shape_EA), entry_N)
    batch = spread.read(trajectories, [*RECORDED, *trajectories.wanted_outputs(outputs)], team.steps)
    batch |= {name: spread(flag_N) for name, flag_N in trajectories.end_flags().items()}
    batch[Columns.ACTIVE] = spread.is_filled()
    spread = _Spread(shape_EA, entry_S)
    batch[Columns.FINAL_OBS] = map_struct(spread, trajectories.final_obs())
    batch[Columns.FINAL_T] = spread(trajectories.final_env_t() - first_E[chunk_S])
    batch[Columns.AGENT_ID] = np.broadcast_to(team.ids_EA, shape_EA).copy()
    return batch


class _Spread:
    """Puts items at entries of an array that is 0 elsewhere.

    Args:
        shape: Shape of the array, without that of an item.
        entry_N: Entry of each item, int64 [n], as a flat index into `shape`; without duplicates.
    """

    def __init__(self, shape: tuple[int, ...], entry_N: np.ndarray):
        self._shape = shape
        # Gathering in the array's order takes one pass: empty entries get the first item and are cleared afterwards.
        self._item_of_entry = np.zeros(math.prod(shape), np.int64)
        self._item_of_entry[entry_N] = np.arange(len(entry_N))
        self._is_filled = np.zeros(len(self._item_of_entry), bool)
        self._is_filled[entry_N] = True
        self._empty = np.flatnonzero(~self._is_filled)

    def __call__(self, leaf: np.ndarray) -> np.ndarray:
        """Spread [n, ...] to [*shape, ...], as a copy."""
        return self._finished(leaf.take(self._item_of_entry, 0))

    def read(self, trajectories: Trajectories, names: Collection[str], steps: np.ndarray) -> Batch:
        """Read columns of the items, which are these steps, and spread them."""
        if trajectories.is_one_run:
            columns = trajectories.read_all(names, steps.take(self._item_of_entry))
            return {name: map_struct(self._finished, column) for name, column in columns.items()}
        columns = trajectories.read_all(names, steps)
        return {name: map_struct(self, column) for name, column in columns.items()}

    def is_filled(self) -> np.ndarray:
        """Return which entries hold an item, bool [*shape]."""
        return self._is_filled.reshape(self._shape)

    def _finished(self, leaf: np.ndarray) -> np.ndarray:
        """Clear the empty entries of [entries, ...], and reshape it to [*shape, ...]."""
        leaf[self._empty] = np.zeros((), leaf.dtype)
        return leaf.reshape(*self._shape, *leaf.shape[1:])


def _env_states(states_E: list[np.ndarray | None], first_E: np.ndarray, n_rows_E: np.ndarray) -> np.ndarray:
    """Stack the chunks' env states to [T + 1, E, ...], zero-padded."""
    model = next(states for states in states_E if states is not None)
    out = np.zeros((int(n_rows_E.max()) + 1, len(states_E), *model.shape[1:]), model.dtype)
    for chunk, (states, n_rows) in enumerate(zip(states_E, n_rows_E.tolist(), strict=True)):
        if states is None or len(states) <= n_rows:
            got = "none" if states is None else f"only the last {len(states)}"
            raise BatchError(f"expected env states of the {n_rows + 1} env steps from {first_E[chunk]} on in chunk "
                             f"{chunk}, as in others, got {got}; sample all of them with "
                             f"record_env_state=True")  # fmt: skip
        if states.dtype != model.dtype or states.shape[1:] != model.shape[1:]:
            raise BatchError(f"the env states of chunk {chunk} are {states.dtype} of shape {states.shape[1:]}, those "
                             f"of others {model.dtype} of shape {model.shape[1:]}; align them separately")  # fmt: skip
        out[: n_rows + 1, chunk] = states[-n_rows - 1 :]
    return out
