"""Conversion of episode chunks, without agent steps, to rows of an Arrow table and back."""

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from fastmarl.core.episodes.chunk import Chunk, ChunkHead
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.native._garbage import without_collection
from fastmarl.core.spaces.columns import Columns
from fastmarl.offline.arrow import load
from fastmarl.offline.json_values import from_json, ids_text, to_json

PLAIN = {  # field of the chunk -> type of its column
    "id_": "string",
    "env_t_started": "int64",
    "env_t": "int64",
    "lookback": "int64",
    "is_terminated": "bool_",
    "is_truncated": "bool_",
    "duration_s": "float64",
}
EPISODE = "eps_id"  # the column of `id_`
EXTRAS = ("custom_data", "hanging_rewards")  # fields of the chunk written unchanged
AGENT_IDS, EXTRA, ENV_STATES, STATES_FORM = "agent_ids", "extra", "env_states", "env_states_form"


def schema() -> Any:
    """Return the Arrow schema of the table of chunks."""
    pa = load()
    fields = [(EPISODE if name == "id_" else name, getattr(pa, kind)()) for name, kind in PLAIN.items()]
    fields += [(AGENT_IDS, pa.string()), (EXTRA, pa.string())]
    return pa.schema([*fields, (ENV_STATES, pa.large_binary()), (STATES_FORM, pa.string())])


def chunk_table(
    episodes: Sequence[MultiAgentEpisode],
    heads: Sequence[ChunkHead | None],
    *,
    keeps_infos: bool,
) -> Any:
    """Return an Arrow table with one row per chunk.

    Args:
        episodes: The chunks.
        heads: The head of each chunk, or None; see `MultiAgentEpisode.head()`.
        keeps_infos: Whether to write infos; if not, infos are empty when episodes are read.

    Raises:
        OfflineError: If a chunk contains a value that JSON cannot represent.
    """
    pa = load()
    chunks: list[ChunkHead | Chunk] = without_collection(list, map(_head_or_chunk, episodes, heads))
    columns: dict[str, Any] = {
        EPISODE if name == "id_" else name: list(map(attrgetter(name), chunks)) for name in PLAIN
    }
    columns[AGENT_IDS] = [ids_text(tuple(chunk.agent_ids)) for chunk in chunks]
    columns[EXTRA] = [
        _extra_text(episode, keeps_infos) if head is None else _seed_text(head)
        for episode, head in zip(episodes, heads, strict=True)
    ]
    states = [episode.env_states if head is None else None for episode, head in zip(episodes, heads, strict=True)]
    columns[ENV_STATES] = [None if each is None else np.ascontiguousarray(each).tobytes() for each in states]
    columns[STATES_FORM] = [
        None if each is None else to_json([each.dtype.str, list(each.shape)], "env states") for each in states
    ]
    of_type = schema()
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in of_type], schema=of_type)


def _head_or_chunk(episode: MultiAgentEpisode, head: ChunkHead | None) -> ChunkHead | Chunk:
    return episode.chunk if head is None else head


def _seed_text(head: ChunkHead) -> str | None:
    """Return the reset seed, the only extra of most chunks, as JSON, without running an encoder."""
    return None if head.reset_seed is None else f'{{"reset_seed":{head.reset_seed}}}'


def _extra_text(episode: MultiAgentEpisode, keeps_infos: bool) -> str | None:
    chunk = episode.chunk
    extra: dict[str, Any] = {name: value for name in EXTRAS if (value := getattr(chunk, name))}
    if keeps_infos:
        extra |= _infos_without_observation(episode)
    if chunk.reset_seed is not None:
        extra["reset_seed"] = chunk.reset_seed
    if chunk.respawned:
        extra["respawned"] = list(chunk.respawned)
    if chunk.agent_episodes is not None:
        extra |= _of_agents(episode, keeps_infos)
    return to_json(extra, f"episode {chunk.id_!r}") if extra else None


def _infos_without_observation(episode: MultiAgentEpisode) -> dict[str, Any]:
    """Return the env infos, and the infos of agents waiting for their next observation."""
    chunk = episode.chunk
    found: dict[str, Any] = {}
    if chunk.common_infos:
        found["common_infos"] = chunk.common_infos
    if (chunk.lanes is None or chunk.lanes.infos) and (waiting := episode.get_waiting_infos()):
        found["waiting_infos"] = waiting
    return found


def _of_agents(episode: MultiAgentEpisode, keeps_infos: bool) -> dict[str, Any]:
    """Return the data of agent episodes that users may have changed, if it differs from the default."""
    agent_episodes = episode.agent_episodes
    found: dict[str, Any] = {}
    with_steps = [agent for agent, agent_episode in agent_episodes.items() if len(agent_episode)]
    known = list(episode.chunk.agent_ids)
    if list(agent_episodes) != with_steps or with_steps != [agent for agent in known if agent in agent_episodes]:
        found["order"] = list(agent_episodes)
    if empty := [agent_episode.get_state() for agent_episode in agent_episodes.values() if not len(agent_episode)]:
        found["without_steps"] = [each if keeps_infos else _without_infos(each) for each in empty]
    own = {}
    for agent, agent_episode in agent_episodes.items():
        id_, custom_data = agent_episode._id, agent_episode._custom_data
        whose = agent_episode.multi_agent_episode_id
        if len(agent_episode) and (id_ is not None or custom_data or whose != episode.id_):
            own[agent] = [id_, custom_data or {}, whose]
    if own:
        found["of_agents"] = own
    return found


def _without_infos(state: dict[str, Any]) -> dict[str, Any]:
    """Replace the infos in the state of an agent episode with empty ones."""
    return {**state, Columns.INFOS: [{} for _ in state[Columns.INFOS]]}


def chunk_states(table: Any) -> list[dict[str, Any]]:
    """Return the state of each chunk, one per row of the table.

    The states are in the format of `MultiAgentEpisode.from_state()`, but without agent episodes and with the
    additional keys "waiting_infos", "order", "without_steps" and "of_agents", as written by `chunk_table()`.
    """
    columns = {name: table.column(name).to_pylist() for name in table.schema.names}
    ids: dict[str, list[Hashable]] = {}
    states = []
    for row in range(table.num_rows):
        state = {name: columns[EPISODE if name == "id_" else name][row] for name in PLAIN}
        text = columns[AGENT_IDS][row]
        if text not in ids:
            ids[text] = from_json(text)
        state["agent_ids"] = list(ids[text])
        extra = columns[EXTRA][row]
        state |= {
            "custom_data": {}, "common_infos": {}, "hanging_rewards": {}, "respawned": [], "reset_seed": None,
            "waiting_infos": {}, "order": None, "without_steps": [], "of_agents": {},
        }  # fmt: skip
        state |= from_json(extra) if extra is not None else {}
        state["env_states"] = _array(columns[ENV_STATES][row], columns[STATES_FORM][row])
        states.append(state)
    return states


def _array(data: bytes | None, form: str | None) -> np.ndarray | None:
    if data is None or form is None:
        return None
    dtype, shape = from_json(form)
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()
