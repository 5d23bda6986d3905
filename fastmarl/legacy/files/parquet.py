"""Conversion of JSON files of the old RLlib API stack to Parquet files of episodes.

Axes in names: N row of a policy batch.
"""

import os
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise, starmap
from typing import Any

import numpy as np

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import ArraySource
from fastmarl.core.errors import OfflineError
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.legacy.batches.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch
from fastmarl.legacy.files.json_reader import JsonReader
from fastmarl.offline import ParquetWriter

T, AGENT_INDEX = "t", "agent_index"
NEEDED = (
    Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.EPS_ID, AGENT_INDEX,
    T,
)  # fmt: skip
NOT_OUTPUTS = (*NEEDED, Columns.TRUNCATEDS, Columns.INFOS, "unroll_id")


def json_to_parquet(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], path: str | os.PathLike[str], **options: Any
) -> int:
    """Convert JSON files of the old RLlib API stack to a directory of Parquet files; see docs/offline.md.

    Args:
        inputs: As in `JsonReader`; lines without a batch are skipped with a warning.
        path: Directory for the files; see `fastmarl.offline.ParquetWriter`.
        options: Other arguments of `fastmarl.offline.ParquetWriter`.

    Returns:
        Number of agent steps written.

    Raises:
        ConfigError: If the files do not exist, or an option of the writer is invalid.
        OfflineError: If a required column is missing from a batch, or the directory is not writable.
    """
    n_steps = 0
    with ParquetWriter(path, **options) as writer:
        for batch in JsonReader(inputs).read_all_files():
            episodes = episodes_of(batch)
            writer.write(episodes)
            n_steps += sum(episode.agent_steps() for episode in episodes)
    return n_steps


def episodes_of(batch: Any) -> list[MultiAgentEpisode]:
    """Return the episode chunks in a SampleBatch or MultiAgentBatch, in order of appearance.

    Agent ids are the values of "agent_index", module ids are the policy ids.

    Raises:
        OfflineError: If a column is missing, or columns have different numbers of rows.
    """
    is_multi = isinstance(batch, MultiAgentBatch)
    batches = batch.policy_batches if is_multi else {DEFAULT_POLICY_ID: batch}
    chunks: dict[tuple[str, int], dict[Hashable, SingleAgentEpisode]] = {}
    for policy_id, columns in batches.items():
        n_before: Counter[tuple[str, Hashable]] = Counter()  # earlier trajectories, each in a separate chunk
        for agent_episode in _agent_episodes(policy_id, dict(columns.items())):
            episode_id, agent_id = str(agent_episode.multi_agent_episode_id), agent_episode.agent_id
            chunk = chunks.setdefault((episode_id, n_before[episode_id, agent_id]), {})
            chunk[agent_id] = agent_episode
            n_before[episode_id, agent_id] += 1
    return [_episode(episode_id, agents) for (episode_id, _), agents in chunks.items()]


def _episode(episode_id: str, agents: dict[Hashable, SingleAgentEpisode]) -> MultiAgentEpisode:
    """Build an episode, which is done if all agent trajectories are, because files do not contain env flags."""
    env_ts = [agent_episode.env_ts() for agent_episode in agents.values()]
    is_over = all(agent_episode.is_done for agent_episode in agents.values())
    is_terminated = is_over and all(agent_episode.is_terminated for agent_episode in agents.values())
    return MultiAgentEpisode.of_agents(
        agent_episodes=agents,
        id_=episode_id,
        env_t_started=min(int(each[0]) for each in env_ts),
        env_t=max(int(each[-1]) for each in env_ts),
        is_terminated=is_terminated,
        is_truncated=is_over and not is_terminated,
    )


def _agent_episodes(policy_id: str, columns: Mapping[str, Any]) -> Iterator[SingleAgentEpisode]:
    """Yield an agent episode for each trajectory in a policy batch."""
    if lacking := [name for name in NEEDED if name not in columns]:
        raise OfflineError(f"a batch of policy {policy_id!r} has no columns {lacking}, which are required to build "
                           f"episodes")  # fmt: skip
    n = len(columns[Columns.REWARDS])
    for name in (*NEEDED, Columns.TRUNCATEDS, Columns.INFOS):
        if name in columns and not _has_rows(name, columns[name], n):
            raise OfflineError(f"the column {name!r} of policy {policy_id!r} must have an entry for each of {n} rows")
    for rows in _trajectories(columns):
        yield _agent_episode(policy_id, columns, rows)


def _has_rows(name: str, column: Any, n: int) -> bool:
    leaves = [column] if name == Columns.INFOS else [leaf for _, leaf in flatten_struct(column)]
    return all(np.ndim(leaf) > 0 and len(leaf) == n for leaf in leaves)


def _trajectories(columns: Mapping[str, Any]) -> Iterator[slice]:
    """Yield the rows of each trajectory: consecutive rows of an agent in an episode, with increasing env steps."""
    episode_N, agent_N, t_N = (np.asarray(columns[name]) for name in (Columns.EPS_ID, AGENT_INDEX, T))
    if not len(t_N):
        return
    is_cut = (episode_N[1:] != episode_N[:-1]) | (agent_N[1:] != agent_N[:-1]) | (t_N[1:] <= t_N[:-1])
    edges = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(t_N)]
    yield from starmap(slice, pairwise(edges))


def _agent_episode(policy_id: str, columns: Mapping[str, Any], rows: slice) -> SingleAgentEpisode:
    n, last = len(columns[T]), rows.stop - 1
    env_ts = np.asarray(columns[T])[rows].astype(np.int64)
    extras = {
        name: map_struct(lambda leaf: np.asarray(leaf)[rows], column)
        for name, column in columns.items()
        if name not in NOT_OUTPUTS and _has_rows(name, column, n)
    }  # without columns that have an entry per sequence: "seq_lens" and "state_in_0" and so on
    source = ArraySource(
        observations=_with_final(columns[Columns.OBS], columns[Columns.NEXT_OBS], rows),
        env_ts=np.append(env_ts, env_ts[-1] + 1),
        actions=map_struct(lambda leaf: leaf[rows], columns[Columns.ACTIONS]),
        rewards=np.asarray(columns[Columns.REWARDS], np.float64)[rows],
        infos=[*map(_info, columns[Columns.INFOS][rows]), {}] if Columns.INFOS in columns else None,
        extras=extras,
    )
    return SingleAgentEpisode.of(
        agent_id=int(columns[AGENT_INDEX][last]),
        module_id=policy_id,
        multi_agent_episode_id=str(columns[Columns.EPS_ID][last]),
        observation_space=None,
        action_space=None,
        source=source,
        lookback=0,
        t_started=int(env_ts[0]),
        is_terminated=bool(columns[Columns.TERMINATEDS][last]),
        is_truncated=Columns.TRUNCATEDS in columns and bool(columns[Columns.TRUNCATEDS][last]),
    )


def _with_final(obs: Any, next_obs: Any, rows: slice) -> Any:
    """Return the observations of these rows followed by the final one, cast to the dtype of `obs`.

    The dtypes of the two columns differ if only one of them is packed in the file.
    """
    finals = iter([leaf[rows.stop - 1 : rows.stop] for _, leaf in flatten_struct(next_obs)])
    return map_struct(lambda leaf: np.concatenate([leaf[rows], next(finals).astype(leaf.dtype)]), obs)


def _info(info: Any) -> dict[str, Any]:
    """Return an info as a dict, since the RLlib writer converts infos that JSON cannot represent to strings."""
    return info if isinstance(info, dict) else {"info": info} if info else {}
