"""Episodes as columns aligned by env step, for critics that see all agents of a group at once.

Axes in names: T env step, E chunk, A agent's seat in its group, S trajectory, N step of a trajectory.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial

import numpy as np

from fastmarl.batches.flat import Batch
from fastmarl.batches.trajectories import RECORDED, Trajectories, as_objects
from fastmarl.columns import Columns
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.episodes.single_agent import SingleAgentEpisode
from fastmarl.errors import BatchError
from fastmarl.spaces import map_struct

AgentID = Hashable
Groups = Mapping[str, Sequence[AgentID]] | Callable[[AgentID, MultiAgentEpisode], str | None]
Members = dict[str, list[list[AgentID]]]  # group -> chunk -> its agents, in order of their seats


def aligned(
    episodes: Sequence[MultiAgentEpisode],
    *,
    groups: Groups | None = None,
    agents: Sequence[AgentID] | None = None,
    outputs: Collection[str] | None = None,
) -> dict[str, Batch]:
    """Group -> the steps of its agents by env step: T env steps of E chunks, with A seats for agents.

    Row t of a chunk is env step first_env_t + t. That is the chunk's first step, or an earlier one if an agent acted
    at it and waited: every transition of every chunk is in exactly one row, that of its action.

    - "active": bool [T, E, A], whether the agent acted at this step. Everything else is 0 where it did not: before it
      joined, while it waited, after it ended ("death masking", Yu et al. 2022, "The Surprising Effectiveness of PPO in
      Cooperative Multi-Agent Games"), in empty seats, after the chunk's end.
    - "obs", "actions", each of `outputs`: [T, E, A, ...]; "rewards": float64 [T, E, A].
    - "terminateds", "truncateds": bool [T, E, A], at an agent's last action if it ended so.
    - "final_obs" [E, A, ...]: each agent's last observation; "final_t": int64 [E, A], the row at which it came.
    - "env_state" [T + 1, E, ...], the same array for all groups, if the chunks have env states: those of the rows, and
      of the one after the last.
    - "seq_lens": int64 [E], rows of each chunk; "first_env_t": int64 [E].
    - "agent_id": object [E, A], None for empty seats.

    Args:
        episodes: chunks as `sample()` returns them.
        groups: group -> agents, in order of their seats; or `(agent_id, episode) -> group`, None for agents that are
            left out; or None: each module's agents are a group.
        agents: all agents in the order in which groups are seated, where `groups` is not a dict. None: in order of
            appearance in `episodes`, which may be another one for other episodes.
        outputs: names of recorded outputs; None: those that all agents of the group have, but "state_in", "state_out",
            and those with the name of another column.

    Raises:
        BatchError: the agents of a group have different spaces, an output was not recorded, or only some of the chunks
            have env states, or they have different ones.
    """
    members = _members(episodes, groups, agents)
    seated = {group: _Seats(group, chunks, episodes, by_module=groups is None) for group, chunks in members.items()}
    seated = {group: seats for group, seats in seated.items() if seats.agent_episodes}
    first_E = np.array([episode.env_t_started for episode in episodes], np.int64)
    for seats in seated.values():
        np.minimum.at(first_E, seats.chunk_S, seats.first_env_t_S)
    n_rows_E = np.array([episode.env_t for episode in episodes], np.int64) - first_E
    shared = {Columns.SEQ_LENS: n_rows_E, Columns.FIRST_ENV_T: first_E}
    if any(episode.env_states is not None for episode in episodes):
        shared[Columns.ENV_STATE] = _env_states(episodes, first_E, n_rows_E)
    return {group: _columns(seats, first_E, n_rows_E, outputs) | shared for group, seats in seated.items()}


class _Seats:
    """The trajectories of one group, each with its chunk and seat."""

    def __init__(
        self, group: str, members_E: list[list[AgentID]], episodes: Sequence[MultiAgentEpisode], *, by_module: bool
    ):
        found: list[tuple[str, int, int, SingleAgentEpisode]] = []
        for chunk, (episode, members) in enumerate(zip(episodes, members_E, strict=True)):
            agent_episodes = episode.agent_episodes
            for seat, agent_id in enumerate(members):
                if agent_id in agent_episodes and len(agent_episodes[agent_id]):
                    module_id = episode.module_for(agent_id)
                    if not by_module or module_id == group:
                        found.append((module_id, chunk, seat, agent_episodes[agent_id]))
        found.sort(key=lambda entry: entry[0])  # what lies in one block is read at once
        self.members_E = members_E
        self.n_seats = max(map(len, members_E), default=0)
        self.agent_episodes = [agent_episode for *_, agent_episode in found]
        self.chunk_S = np.array([chunk for _, chunk, _, _ in found], np.int64)
        self.seat_S = np.array([seat for _, _, seat, _ in found], np.int64)
        if found:
            self.trajectories = Trajectories(self.agent_episodes)
            self.first_env_t_S = self.trajectories.env_ts(self.trajectories.first_S)


def _members(episodes: Sequence[MultiAgentEpisode], groups: Groups | None, agents: Sequence[AgentID] | None) -> Members:
    if isinstance(groups, Mapping):
        if agents is not None:
            raise BatchError("groups given as a dict have their agents in order; leave `agents` out")
        return {group: [list(of_group)] * len(episodes) for group, of_group in groups.items()}
    if agents is None:
        agents = list(dict.fromkeys(agent_id for episode in episodes for agent_id in episode.agent_episodes))
    if groups is None:
        return _members_of_modules(episodes, agents)
    members: Members = {}
    for chunk, episode in enumerate(episodes):
        for agent_id in agents:
            if (group := groups(agent_id, episode)) is not None:
                members.setdefault(group, [[] for _ in episodes])[chunk].append(agent_id)
    return members


def _members_of_modules(episodes: Sequence[MultiAgentEpisode], agents: Sequence[AgentID]) -> Members:
    """Module -> the agents that it acted for in some chunk."""
    of_module: dict[str, set[AgentID]] = {}
    for episode in episodes:
        for agent_id in episode.agent_episodes:
            of_module.setdefault(episode.module_for(agent_id), set()).add(agent_id)
    return {
        module_id: [[agent_id for agent_id in agents if agent_id in acted]] * len(episodes)
        for module_id, acted in of_module.items()
    }


def _columns(seats: _Seats, first_E: np.ndarray, n_rows_E: np.ndarray, outputs: Collection[str] | None) -> Batch:
    trajectories, chunk_S, seat_S = seats.trajectories, seats.chunk_S, seats.seat_S
    steps = trajectories.steps_after_lookback()
    chunk_N = np.repeat(chunk_S, trajectories.length_S)
    row_N = trajectories.env_ts(steps) - first_E[chunk_N]
    shape_EA = len(first_E), seats.n_seats
    index_N = row_N, chunk_N, np.repeat(seat_S, trajectories.length_S)
    spread = partial(_spread, (int(n_rows_E.max()), *shape_EA), index_N)
    batch: Batch = {
        name: map_struct(spread, trajectories.read(name, steps))
        for name in (*RECORDED, *trajectories.wanted_outputs(outputs))
    }
    batch |= {name: spread(flag_N) for name, flag_N in trajectories.end_flags().items()}
    batch[Columns.ACTIVE] = spread(np.ones(len(steps), bool))
    spread = partial(_spread, shape_EA, (chunk_S, seat_S))
    batch[Columns.FINAL_OBS] = map_struct(spread, trajectories.final_obs())
    batch[Columns.FINAL_T] = spread(trajectories.final_env_t() - first_E[chunk_S])
    batch[Columns.AGENT_ID] = np.full(shape_EA, None, object)
    for ids, members in zip(batch[Columns.AGENT_ID], seats.members_E, strict=True):
        ids[: len(members)] = as_objects(members)
    return batch


def _spread(shape: tuple[int, ...], index: tuple[np.ndarray, ...], leaf: np.ndarray) -> np.ndarray:
    """Rows of an array, each at its index in an array of zeros."""
    out = np.zeros((*shape, *leaf.shape[1:]), leaf.dtype)
    out[index] = leaf
    return out


def _env_states(episodes: Sequence[MultiAgentEpisode], first_E: np.ndarray, n_rows_E: np.ndarray) -> np.ndarray:
    """[T + 1, E, ...]"""
    states_E = [episode.env_states for episode in episodes]
    model = next(states for states in states_E if states is not None)
    out = np.zeros((int(n_rows_E.max()) + 1, len(states_E), *model.shape[1:]), model.dtype)
    for chunk, states in enumerate(states_E):
        n = int(n_rows_E[chunk]) + 1
        if states is None or len(states) < n:
            got = "none" if states is None else f"only the last {len(states)}"
            raise BatchError(f"expected env states of the {n} env steps from {first_E[chunk]} on in chunk {chunk}, as "
                             f"in others, got {got}; sample all of them with record_env_state=True")  # fmt: skip
        if (states.dtype, states.shape[1:]) != (model.dtype, model.shape[1:]):
            raise BatchError(f"the env states of chunk {chunk} are {states.dtype} of shape {states.shape[1:]}, those "
                             f"of others {model.dtype} of shape {model.shape[1:]}; align them apart")  # fmt: skip
        out[:n, chunk] = states[-n:]
    return out
