"""Converts episodes to columns aligned by env step, for critics that see all agents of a group at once.

Axes in names: T env step, E chunk, A slot of the agent in its group, S trajectory, N step of a trajectory.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from fastmarl.core.batches.agent_episode_table import AgentEpisodeTable, waiting_in
from fastmarl.core.batches.flat import Batch
from fastmarl.core.batches.groups import Groups, in_slots, members_of
from fastmarl.core.batches.trajectories import RECORDED, Trajectories, as_objects, names_of
from fastmarl.core.envs.values import same
from fastmarl.core.episodes.chunk import Chunk, Unbuilt
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.queries import AgentID
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.unbuilt import in_numbers
from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.columns import Columns, Recorded, recorded_name
from fastmarl.core.spaces.masks import MASK, mask_row
from fastmarl.core.spaces.structs import map_struct


def aligned(
    episodes: Iterable[MultiAgentEpisode],
    *,
    groups: Groups | None = None,
    agents: Sequence[AgentID] | None = None,
    outputs: Iterable[str] | None = None,
) -> dict[str, Batch]:
    """Convert episodes to columns per group, aligned by env step: T env steps of E chunks, with A slots for agents.

    Row t of a chunk is env step first_env_t + t. The first row is the first step of the chunk, or an earlier one at
    which an agent acted and then waited. Thus every transition is in exactly one row, the row of its action.

    - "active": bool [T, E, A], True if the agent acted at this step. The other columns are 0 where it did not: before
      it joined, while it waited, after it finished ("death masking", Yu et al. 2022, "The Surprising Effectiveness of
      PPO in Cooperative Multi-Agent Games"), in empty slots, and after the end of the chunk.
    - "obs", "actions", each of `outputs`, and "action_mask" as in `columns()`: [T, E, A, ...].
    - "rewards": float64 [T, E, A].
    - "terminateds", "truncateds": bool [T, E, A], True at the last action of an agent if it ended this way.
    - "next_t": int64 [T, E, A], the row in which the next observation of the agent arrived, at most T.
    - "final_obs" [E, A, ...]: the last observation of each agent; "final_t": int64 [E, A], the row in which it arrived.
      If "final_t" < "seq_lens", the agent has finished or is waiting: it has acted on this observation, and the step
      will be in a later chunk. Agents without a step in the chunk are included, unless the chunk was sliced, joined or
      read from a file; agents first observed in the env step that ended the episode never are.
      "final_action_mask" [E, A, choices]: the mask of that observation, if there is an "action_mask".
    - "continues": bool [E, A], True if the agent has a last observation and has not terminated, so its value counts.
    - "respawned": bool [E, A], True if the agent finished in this chunk and respawned in its last env step, so that its
      next trajectory starts in row "seq_lens"; "respawn_obs" [E, A, ...]: the observation there, and
      "respawn_action_mask" its mask. These columns exist if there is such an agent.
    - "env_state" [T + 1, E, ...], if the chunks have env states: the states at all rows and after the last one. All
      groups share this array.
    - "seq_lens": int64 [E], number of rows of each chunk; "first_env_t": int64 [E]; "eps_id": object [E];
      "is_done": bool [E], True if the episode ended with the chunk.
    - "agent_id": object [E, A], None for empty slots.

    Args:
        episodes: Chunks as returned by `sample()`.
        groups: Group -> agents in slot order; or a function `(agent_id, episode) -> group`, which returns None to leave
            an agent out; or None for one group per module.
        agents: All agents in slot order; must be None if `groups` is a dict. None means the order of appearance in
            `episodes`, which may vary between calls.
        outputs: Names of recorded outputs. None means all outputs common to all agents of the group, except "state_in",
            "state_out", and names of other columns.

    Returns:
        Group -> name -> column. A group is missing if none of its agents finished a step, unless `groups` or `agents`
        name one that acted and waits; "active" is then all False.

    Raises:
        BatchError: If agents of a group have different spaces, an output was not recorded, an agent with steps is
            missing from `agents`, or env states differ in dtype or shape or exist in only some of the chunks.
    """
    episodes, outputs = list(episodes), names_of(outputs)
    chunks = [*in_numbers(episodes)]
    table = AgentEpisodeTable(chunks, with_waiting=True)
    members = members_of(table, episodes, groups, agents)
    slots = in_slots(table, members, len(episodes), by_module=groups is None)
    first_E, end_E = _times(chunks)
    respawning = [(e, each) for e, episode in enumerate(episodes) for each in _respawning_in(episode)]
    teams = {}
    for group, places in slots.items():
        acts_S = table.length_S[places[0]] > 0
        if not acts_S.any():
            acts_S = _waits(table, *places[:2], end_E)
        if acts_S.any():
            teams[group] = _Team(table, members[group], episodes, *places, acts_S)
    for team in teams.values():
        if len(team.steps):
            np.minimum.at(first_E, team.chunk_S, team.first_env_t_S)
    n_rows_E = end_E - first_E
    done = [flag for each in chunks for flag in (each.are_done if isinstance(each, Unbuilt) else [each.is_done])]
    shared = {Columns.SEQ_LENS: n_rows_E, Columns.FIRST_ENV_T: first_E, Columns.EPS_ID: _ids(chunks),
              Columns.IS_DONE: np.array(done, bool)}  # fmt: skip
    states_E = [states for each in chunks for states in _states_of(each)]
    if any(states is not None for states in states_E):
        shared[Columns.ENV_STATE] = _env_states(states_E, first_E, n_rows_E)
    batches = {group: _columns(team, first_E, n_rows_E, outputs) | shared for group, team in teams.items()}
    for group, batch in batches.items() if respawning else ():
        batch |= _respawn_columns(batch, respawning, None if groups is not None else group)
    return batches


def _waits(table: AgentEpisodeTable, place_S: np.ndarray, chunk_S: np.ndarray, end_E: np.ndarray) -> np.ndarray:
    """Return, for agents without steps, whether they acted and wait, bool [s]."""
    if not len(place_S):
        return np.zeros(0, bool)
    seen = Trajectories(table, place_S)
    waits_S = seen.final_env_t() < end_E[chunk_S]
    return np.asarray(waits_S & ~np.logical_or(*seen.ended_S.values()))


def _ids(chunks: list[Unbuilt | MultiAgentEpisode]) -> np.ndarray:
    return as_objects([id_ for each in chunks for id_ in (each.ids if isinstance(each, Unbuilt) else [each.id_])])


def _times(chunks: list[Unbuilt | MultiAgentEpisode]) -> tuple[np.ndarray, np.ndarray]:
    """Return env_t_started and env_t of all chunks, each int64 [E]."""
    times = [each.times if isinstance(each, Unbuilt) else [(each.env_t_started, each.env_t)] for each in chunks]
    first_E, end_E = np.concatenate([np.empty((0, 2), np.int64), *times]).T.copy()
    return first_E, end_E


def _states_of(chunks: Unbuilt | MultiAgentEpisode) -> Sequence[np.ndarray | None]:
    return chunks.env_states if isinstance(chunks, Unbuilt) else [chunks.env_states]


class _Team:
    """The trajectories of a group.

    Args:
        table: The table that `place_S` indexes.
        ids_EA: See `Members`.
        episodes: The chunks.
        place_S, chunk_S, slot_S: Table index, chunk and slot of each agent episode of the group, int64.
        acts_S: Whether each has steps, or if none has, whether its agent acted and waits, bool.

    Attributes:
        trajectories: Those for which `acts_S` is True; `chunk_S` and `slot_S` refer to these.
        seen: All agent episodes of the group, with or without steps; `seen_places` are their chunks and slots.
    """

    def __init__(
        self,
        table: AgentEpisodeTable,
        ids_EA: np.ndarray,
        episodes: list[MultiAgentEpisode],
        place_S: np.ndarray,
        chunk_S: np.ndarray,
        slot_S: np.ndarray,
        acts_S: np.ndarray,
    ):
        self.ids_EA, self.episodes = ids_EA, episodes
        self.trajectories = Trajectories(table, place_S[acts_S])
        self.chunk_S, self.slot_S = chunk_S[acts_S], slot_S[acts_S]
        self.seen = self.trajectories if acts_S.all() else Trajectories(table, place_S)
        self.seen_places = chunk_S, slot_S
        self.steps = self.trajectories.steps_after_lookback()
        self.env_t_N = self.trajectories.env_ts(self.steps)

    @property
    def first_env_t_S(self) -> np.ndarray:
        return self.env_t_N[self._last_N + 1 - self.trajectories.length_S]

    @property
    def next_env_t_N(self) -> np.ndarray:
        """Env step at which the observation after each step arrived, int64 [N]."""
        if not len(self.steps):
            return self.env_t_N
        next_N = np.append(self.env_t_N[1:], 0)
        next_N[self._last_N] = self.trajectories.final_env_t()
        return next_N

    @property
    def _last_N(self) -> np.ndarray:
        """Index of the last step of each trajectory, int64 [S]."""
        return np.cumsum(self.trajectories.length_S) - 1


def _columns(team: _Team, first_E: np.ndarray, n_rows_E: np.ndarray, outputs: Collection[str] | None) -> Batch:
    trajectories, chunk_S = team.trajectories, team.chunk_S
    shape_EA = len(first_E), team.ids_EA.shape[1]
    n_entries, entry_S = math.prod(shape_EA), chunk_S * shape_EA[1] + team.slot_S
    # Row t starts at entry t * n_entries.
    before_S = entry_S - first_E[chunk_S] * n_entries
    entry_N = team.env_t_N * n_entries + np.repeat(before_S, trajectories.length_S)
    spread = _Spread((int(n_rows_E.max()), *shape_EA), entry_N)
    batch = spread.read(trajectories, [*RECORDED, *trajectories.wanted_outputs(outputs)], team.steps)
    batch |= {name: spread(flag_N) for name, flag_N in trajectories.end_flags().items()}
    batch[Columns.ACTIVE] = spread.is_filled()
    batch[Columns.NEXT_T] = spread(team.next_env_t_N - np.repeat(first_E[chunk_S], trajectories.length_S))
    batch |= _last_columns(team, first_E)
    mask = recorded_name(Recorded.ACTION_MASK, batch)
    if mask in batch:
        batch[Columns.FINAL_ACTION_MASK] = _last_masks(team, batch[Columns.CONTINUES], batch[mask])
    batch[Columns.AGENT_ID] = np.broadcast_to(team.ids_EA, shape_EA).copy()
    return batch


def _last_columns(team: _Team, first_E: np.ndarray) -> Batch:
    """Return the columns of last observations, [E, A, ...]."""
    chunk_S, slot_S = team.seen_places
    shape_EA = len(first_E), team.ids_EA.shape[1]
    final_t_S = team.seen.final_env_t() - first_E[chunk_S]
    is_seen_S = final_t_S >= 0  # False if it arrived before the first row and no step followed
    spread = _Spread(shape_EA, chunk_S * shape_EA[1] + slot_S)
    return {
        Columns.FINAL_OBS: map_struct(spread, team.seen.final_obs()),
        Columns.FINAL_T: spread(np.where(is_seen_S, final_t_S, 0)),
        Columns.CONTINUES: spread(is_seen_S & ~team.seen.ended_S[Columns.TERMINATEDS]),
    }


def _last_masks(team: _Team, continues_EA: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return masks from infos of last observations, [E, A, choices]; all True for continuing agents without one."""
    masks = np.zeros((*continues_EA.shape, *like.shape[3:]), like.dtype)
    ids_EA = np.broadcast_to(team.ids_EA, continues_EA.shape)
    for chunk, slots in groupby(np.argwhere(continues_EA).tolist(), itemgetter(0)):
        infos = _last_infos(team.episodes[chunk])
        for _, slot in slots:
            masks[chunk, slot] = _mask_in(infos.get(ids_EA[chunk, slot], {}), masks)
    return masks


def _mask_in(info: Mapping[str, Any], like: np.ndarray) -> Any:
    """Return the mask in an info, shaped as in `like` [E, A, ...]; True if there is none."""
    return mask_row(info[MASK]).reshape(like.shape[2:]) != 0 if MASK in info else True


def _last_infos(episode: MultiAgentEpisode) -> dict[AgentID, Any]:
    """Return the info that came with the last observation of each agent."""
    observed = [*episode.agent_episodes.values(), *waiting_in(episode)]
    return {each.agent_id: _last_info(each) for each in observed}


def _last_info(agent_episode: SingleAgentEpisode) -> dict[str, Any]:
    info: dict[str, Any] = agent_episode.get_infos(-1)
    if info or not agent_episode.is_done or not len(agent_episode):
        return info
    # An agent without an observation in the last env step repeats the previous one; repeat its info, too.
    last, before = agent_episode.get_observations(-1), agent_episode.get_observations(-2)
    repeated: dict[str, Any] = agent_episode.get_infos(-2)
    return repeated if same(last, before) else info


def _respawning_in(episode: MultiAgentEpisode) -> list[SingleAgentEpisode]:
    """Return the episodes, without steps, that respawned agents start at the end of a chunk."""
    chunk = episode._chunk  # unread chunks have none, as a respawn ends its chunk, which is read then
    respawned = chunk.respawned if isinstance(chunk, Chunk) else ()
    return [each for each in episode.without_steps() if each.agent_id in respawned] if respawned else []


def _respawn_columns(batch: Batch, respawning: list[tuple[int, SingleAgentEpisode]], module_id: str | None) -> Batch:
    """Return the columns of agents that respawn at the end of their chunks; {} if the group has none.

    Args:
        batch: The other columns of the group.
        respawning: Pairs of chunk and new agent episode.
        module_id: The module that the group consists of, or None if the group is not a module.
    """
    ids_EA = batch[Columns.AGENT_ID].tolist()
    places = [
        (e, ids_EA[e].index(each.agent_id), each)
        for e, each in respawning
        if each.agent_id in ids_EA[e] and module_id in (None, each.module_id)
    ]
    if not places:
        return {}
    es, slots, starting = zip(*places, strict=True)
    table = AgentEpisodeTable.of(starting)
    obs = Trajectories(table, np.arange(len(places))).final_obs()
    shape_EA = batch[Columns.AGENT_ID].shape
    spread = _Spread(shape_EA, np.ravel_multi_index((es, slots), shape_EA))
    found = {Columns.RESPAWNED: spread.is_filled(), Columns.RESPAWN_OBS: map_struct(spread, obs)}
    if Columns.FINAL_ACTION_MASK in batch:
        like = batch[Columns.FINAL_ACTION_MASK]
        masks = found[Columns.RESPAWN_ACTION_MASK] = np.zeros_like(like)
        for e, slot, each in places:
            masks[e, slot] = _mask_in(each.get_infos(-1), like)
    return found


class _Spread:
    """Scatters items into an array that is 0 elsewhere.

    Args:
        shape: Shape of the array, without the item axes.
        entry_N: Flat index of each item in an array of this shape, int64 [n], without duplicates.
    """

    def __init__(self, shape: tuple[int, ...], entry_N: np.ndarray):
        self._shape = shape
        # Gathering in array order takes one pass: empty entries get the first item and are cleared afterwards.
        self._item_of_entry = np.zeros(math.prod(shape), np.int64)
        self._item_of_entry[entry_N] = np.arange(len(entry_N))
        self._is_filled = np.zeros(len(self._item_of_entry), bool)
        self._is_filled[entry_N] = True
        self._empty = np.flatnonzero(~self._is_filled)

    def __call__(self, leaf: np.ndarray) -> np.ndarray:
        """Scatter items [n, ...] into a new array [*shape, ...]."""
        if not len(leaf):
            return np.zeros((*self._shape, *leaf.shape[1:]), leaf.dtype)
        return self._finished(leaf.take(self._item_of_entry, 0))

    def read(self, trajectories: Trajectories, names: Collection[str], steps: np.ndarray) -> Batch:
        """Read these columns at `steps`, with one step per item, and scatter them."""
        if trajectories.is_one_run and len(steps):
            columns = trajectories.read_all(names, steps.take(self._item_of_entry))
            return {name: map_struct(self._finished, column) for name, column in columns.items()}
        columns = trajectories.read_all(names, steps)
        return {name: map_struct(self, column) for name, column in columns.items()}

    def is_filled(self) -> np.ndarray:
        """Return True for each entry that contains an item, bool [*shape]."""
        return self._is_filled.reshape(self._shape)

    def _finished(self, leaf: np.ndarray) -> np.ndarray:
        """Clear the empty entries of an array [entries, ...], and reshape it to [*shape, ...]."""
        leaf[self._empty] = np.zeros((), leaf.dtype)
        return leaf.reshape(*self._shape, *leaf.shape[1:])


def _env_states(states_E: list[np.ndarray | None], first_E: np.ndarray, n_rows_E: np.ndarray) -> np.ndarray:
    """Stack the env states of the chunks into a zero-padded array [T + 1, E, ...]."""
    model = next(states for states in states_E if states is not None)
    out = np.zeros((int(n_rows_E.max()) + 1, len(states_E), *model.shape[1:]), model.dtype)
    for chunk, (states, n_rows) in enumerate(zip(states_E, n_rows_E.tolist(), strict=True)):
        if states is None or len(states) <= n_rows:
            got = "none" if states is None else f"only the last {len(states)}"
            raise BatchError(f"expected {n_rows + 1} env states, from env step {first_E[chunk]} on, in chunk "
                             f"{chunk}, as in other chunks, got {got}; sample all chunks with "
                             f"record_env_state=True")  # fmt: skip
        if states.dtype != model.dtype or states.shape[1:] != model.shape[1:]:
            raise BatchError(f"env states of chunk {chunk} are {states.dtype} of shape {states.shape[1:]}, but those "
                             f"of other chunks are {model.dtype} of shape {model.shape[1:]}; align them separately"
                             )  # fmt: skip
        out[: n_rows + 1, chunk] = states[-n_rows - 1 :]
    return out
