"""Groups of agents whose steps `aligned()` puts side by side, and the slot of each agent in its group.

Axes in names: E chunk, A slot of the agent in its group, S agent episode.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fastmarl.core.batches.agent_episode_table import CHUNK, COUNT, FINAL, NOTHING, AgentEpisodeTable
from fastmarl.core.batches.trajectories import as_objects
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.queries import AgentID
from fastmarl.core.errors import BatchError, shown
from fastmarl.core.errors.checks import in_order

Groups = Mapping[str, Sequence[AgentID]] | Callable[[AgentID, MultiAgentEpisode], str | None]
Members = dict[str, np.ndarray]
"""Group -> its agents in slot order, padded with None: object [E, A], or [1, A] if they are the same in all chunks."""


def members_of(
    table: AgentEpisodeTable,
    episodes: Sequence[MultiAgentEpisode],
    groups: Groups | None,
    agents: Sequence[AgentID] | None,
) -> Members:
    """Return the agents of each group; `table` contains the agent episodes, other arguments are as in `aligned()`."""
    if isinstance(groups, Mapping):
        if agents is not None:
            raise BatchError("`agents` must be None if `groups` is a dict, which already orders the agents")
        return {
            group: as_objects(in_order(f"group {group!r}", of_group, BatchError))[None]
            for group, of_group in groups.items()
        }
    if agents is None:
        agents = list(dict.fromkeys(table.agent_ids[s] for s in table.others))
    else:
        agents = in_order("`agents`", agents, BatchError)
        _check_all(table, agents)
    if groups is None:
        return _members_of_modules(table, agents)
    members: dict[str, list[list[AgentID]]] = {}
    for chunk, episode in enumerate(episodes):
        for agent_id in agents:
            if (group := groups(agent_id, episode)) is not None:
                members.setdefault(group, [[] for _ in episodes])[chunk].append(agent_id)
    return {group: _padded(members_E) for group, members_E in members.items()}


def _check_all(table: AgentEpisodeTable, agents: Sequence[AgentID]) -> None:
    """Raise BatchError if an agent with steps is missing from `agents`, because its steps would be lost."""
    acted = dict.fromkeys(table.agent_ids[s] for s in np.flatnonzero(table.length_S).tolist())
    for agent_id in agents:
        acted.pop(agent_id, None)
    if acted:
        raise BatchError(f"`agents` lacks {shown(list(acted))}, which have steps; add them, or exclude them with a "
                         f"`groups` function that returns None for them")  # fmt: skip


def _members_of_modules(table: AgentEpisodeTable, agents: Sequence[AgentID]) -> Members:
    """Return module -> agents that it acted for in any chunk."""
    of_module: dict[int, set[AgentID]] = {}
    for module, s in zip(table.modules(np.array(table.others, np.int64)).tolist(), table.others, strict=True):
        of_module.setdefault(module, set()).add(table.agent_ids[s])
    return {
        table.module_ids[module]: as_objects([agent_id for agent_id in agents if agent_id in acted])[None]
        for module, acted in of_module.items()
    }


def _padded(members_E: list[list[AgentID]]) -> np.ndarray:
    ids_EA = np.full((len(members_E), max(map(len, members_E))), None, object)
    for ids_A, members in zip(ids_EA, members_E, strict=True):
        ids_A[: len(members)] = as_objects(members)
    return ids_EA


def in_slots(
    table: AgentEpisodeTable, members: Members, n_chunks: int, *, by_module: bool
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return group -> (table indices, chunks, slots) of its agent episodes, each int64 [s].

    Agent episodes of the same module are adjacent, so that data in the same block is read together.

    Args:
        by_module: True if each group is a module; it then contains only agent episodes mapped to that module.
    """
    wanted = dict.fromkeys(agent_id for ids_EA in members.values() for agent_id in ids_EA.ravel().tolist())
    wanted.pop(None, None)
    index_of = {agent_id: index for index, agent_id in enumerate(wanted)}
    unknown = len(index_of)
    place_EI = np.full((n_chunks, unknown + 1), NOTHING)  # indexed by chunk and agent index
    index_S = np.array([index_of.get(agent_id, unknown) for agent_id in table.agent_ids], np.int64)
    is_seen_S = (table.numbers[:, COUNT] > 0) | (table.numbers[:, FINAL] >= 0)
    place_EI[table.numbers[:, CHUNK], index_S] = np.where(is_seen_S, np.arange(len(index_S)), NOTHING)
    place_EI[:, unknown] = NOTHING
    found = {}
    for group, ids_EA in members.items():
        index_EA = np.array([index_of.get(agent_id, unknown) for agent_id in ids_EA.ravel().tolist()], np.int64)
        place_EA = place_EI[np.arange(n_chunks)[:, None], index_EA.reshape(ids_EA.shape)]
        chunk_S, slot_S = np.nonzero(place_EA != NOTHING)
        place_S = place_EA[chunk_S, slot_S]
        module_S = table.modules(place_S)
        if by_module:
            order = module_S == table.module_ids.index(group)
        else:
            rank = np.argsort(np.argsort(table.module_ids))
            order = np.argsort(rank[module_S], kind="stable")
        found[group] = place_S[order], chunk_S[order], slot_S[order]
    return found
