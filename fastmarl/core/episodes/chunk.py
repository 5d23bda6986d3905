"""Chunks of episodes, stored as integers and decoded on first access.

Agent episodes are built on demand, because most are never read.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import ref

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.lane_source import BlockColumns, LaneRows, LaneSource
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.native._chunks import ChunkNotes
from fastmarl.core.native._scatter import Scatter, waiting_places
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import map_struct
from fastmarl.core.store.agent_spaces import Spaces
from fastmarl.core.store.block import Block
from fastmarl.core.store.lanes import TERMINATED, TRUNCATED

ROW, COUNT, LOOKBACK, FINAL, MODULE = 0, 1, 2, 4, 7  # columns of Scatter.lanes_now()
ENV_INDEX, ENV_T, FLAGS = 0, 2, 4  # columns of `ChunkNotes.numbers`
OwnData = tuple[
    Sequence[tuple[int, int, dict[str, Any]]], dict[str, Any], np.ndarray | None
]  # infos, custom data, env states
Blocks = Sequence[Block] | Mapping[int, Block]  # indexed by module index


class Unbuilt(NamedTuple):
    """Numeric form of n chunks of a single call, with m lanes in total, whose agent episodes have not been built."""

    ids: list[str]
    times: np.ndarray  # int64 [n, 2]: env_t_started, env_t
    are_done: list[bool]  # [n], True if the episode ended
    env_states: Sequence[Any]
    n_lanes: np.ndarray  # int64 [n]
    agent_ids: list[Hashable]  # [m], in order of appearance within each chunk
    columns: np.ndarray  # int64 [m, 8], see `Scatter.lanes_now()`
    blocks: Blocks
    module_ids: Sequence[str]  # indexed by module index


class ChunkHead(NamedTuple):
    """Contents of a simple chunk without the steps of its agents; see `Chunk`."""

    id_: str
    env_t_started: int
    env_t: int
    lookback: int
    is_terminated: bool
    is_truncated: bool
    duration_s: float
    agent_ids: tuple[Hashable, ...]
    reset_seed: int | None


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ChunkLanes:
    """Locates the rows of all lanes in a chunk.

    Args:
        agent_ids, lanes: Agent ids and lanes in order of appearance.
        columns: One row per lane; see `Scatter.lanes_now()`.
        blocks, module_ids: Blocks and module ids, indexed by module index.
        episode_id: Id of the episode.
        spaces: Agent id -> (observation space, action space).
        infos: Lane -> env step -> info.
        respawned: Lanes of `Chunk.respawned`, which belong to the next chunk; None if there are none.
        is_under_way: True while the episode is running and visible to callbacks. Agents without a transition, and
            pending actions (without a next observation yet), are then included.
        is_private: If True, writes to the agent episodes are not recorded.
    """

    agent_ids: tuple[Hashable, ...]
    lanes: tuple[int, ...]
    columns: np.ndarray
    blocks: Blocks
    module_ids: Sequence[str]
    episode_id: str
    spaces: Mapping[Hashable, Spaces]
    infos: dict[int, dict[int, dict[str, Any]]]
    respawned: "ChunkLanes | None" = None
    is_under_way: bool = False
    is_private: bool = False

    def of_modules(self, wanted: Callable[[str], bool]) -> "ChunkLanes":
        """Select the lanes of the `wanted` modules, without keeping the memory of other modules alive."""
        module_of_lane = self.columns[:, MODULE].tolist()
        modules = {module for module in set(module_of_lane) if wanted(self.module_ids[module])}
        return replace(
            self._select([index for index, module in enumerate(module_of_lane) if module in modules]),
            blocks={module: self.blocks[module] for module in modules},
            respawned=None if self.respawned is None else self.respawned.of_modules(wanted),
        )

    def _select(self, indices: list[int]) -> "ChunkLanes":
        return replace(
            self,
            agent_ids=tuple(self.agent_ids[index] for index in indices),
            lanes=tuple(self.lanes[index] for index in indices),
            columns=self.columns[indices],
        )

    def without_steps(self) -> list[SingleAgentEpisode]:
        """Return the episodes of unfinished agents without a complete step in the chunk, and of respawned agents."""
        found = [] if self.respawned is None else [*self.respawned.agent_episodes(of_all=True).values()]
        if waiting := without_steps(self.columns).tolist():
            found += self._select(waiting).agent_episodes(of_all=True).values()
        return found

    def hanging_rewards(self, acting_from: list[int]) -> dict[Hashable, float]:
        """Return agent id -> sum of rewards since the last action, for agents waiting for an observation."""
        rewards = {}
        for index in waiting_places(self.columns, acting_from):
            row, module = self.columns[index, ROW], self.columns[index, MODULE]
            rewards[self.agent_ids[index]] = self.blocks[module].reward(row)
        return rewards

    def open_actions(self, waiting: Collection[Hashable]) -> dict[Hashable, tuple[Any, dict[str, Any]]]:
        """Return agent id -> (action, extra outputs), for agents waiting for an observation."""
        found = {}
        for agent_id, columns in zip(self.agent_ids, self.columns.tolist(), strict=True):
            if agent_id in waiting:
                block, row = self.blocks[columns[MODULE]], columns[ROW]
                outputs = {
                    key: map_struct(lambda leaf: leaf[row], block.output(key))  # noqa: B023
                    for key in (Columns.ACTIONS, *block.output_keys())
                }
                found[agent_id] = outputs.pop(Columns.ACTIONS), outputs
        return found

    def waiting_infos(self) -> dict[Hashable, dict[int, dict[str, Any]]]:
        """Return agent id -> env step -> info, for steps in which the agent received no observation."""
        found = {}
        for agent_id, lane, columns in zip(self.agent_ids, self.lanes, self.columns.tolist(), strict=True):
            row, count, _, _, final, end_env_t, _, module = columns
            if lane in self.infos:
                lane_rows = LaneRows(self.blocks[module], row, count, final, end_env_t)
                observed = set(BlockColumns(lane_rows).env_ts().tolist())
                if infos := {env_t: info for env_t, info in self.infos[lane].items() if env_t not in observed}:
                    found[agent_id] = infos
        return found

    def n_rows(self) -> int:
        """Return the total number of rows of all lanes."""
        return int(self.columns[:, COUNT].sum())

    def agent_episodes(self, *, of_all: bool = False) -> dict[Hashable, SingleAgentEpisode]:
        """Return agent id -> agent episode, for agents with a complete step in the chunk or, if `of_all`, for all."""
        agent_episodes: dict[Hashable, SingleAgentEpisode] = {}
        of_all = of_all or self.is_under_way
        for agent_id, lane, columns in zip(self.agent_ids, self.lanes, self.columns.tolist(), strict=True):
            row, count, lookback, t_started, final, end_env_t, done, module = columns
            n_obs = count + (final >= 0)
            if n_obs - 1 <= lookback and not (of_all and n_obs):
                continue
            block, (observation_space, action_space) = self.blocks[module], self.spaces[agent_id]
            agent_episodes[agent_id] = SingleAgentEpisode.of(
                agent_id=agent_id,
                module_id=self.module_ids[module],
                multi_agent_episode_id=self.episode_id,
                observation_space=observation_space if block.raw_layout is None else block.layout.space,
                action_space=action_space,
                source=LaneSource(
                    LaneRows(block, row, count, final, end_env_t),
                    self.infos.get(lane, {}),
                    is_under_way=self.is_under_way and not self.is_private,
                    is_private=self.is_private,
                ),
                lookback=lookback,
                t_started=t_started,
                is_terminated=bool(done & TERMINATED),
                is_truncated=bool(done & TRUNCATED),
            )
            block.readers.append(ref(agent_episodes[agent_id]))
        return agent_episodes


def without_steps(columns: np.ndarray) -> np.ndarray:
    """Return the indices of the lanes of unfinished agents that were observed but completed no step, int64."""
    count, final = columns[:, COUNT], columns[:, FINAL]
    return np.flatnonzero((final < 0) & (count > 0) & (count - 1 <= columns[:, LOOKBACK]))


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Chunk:
    """A section of an episode, from env step `env_t_started` to `env_t`.

    Args:
        id_: Episode id, shared by all chunks of the episode.
        agent_episodes: Agent id -> agent episode, for agents with at least one transition in this chunk; None if not
            built yet.
        lookback: Number of env steps before `env_t_started` that negative indices can reach.
        is_terminated, is_truncated: The `__all__` flags; flags of individual agents are in their agent episodes.
        agent_to_module_mapping_fn: Called as `fn(agent_id, episode)` for agents without an agent episode.
        observation_space, action_space: Dicts keyed by agent id.
        common_infos: Env step -> `infos["__common__"]`.
        waiting_infos: The result of `get_waiting_infos()` if `lanes` is None.
        hanging_rewards: Agent id -> sum of rewards since its action, for agents that have not been observed since.
        custom_data: User data attached to the episode, also passed on to later chunks.
        agent_ids: Ids of the live agents of this chunk, including agents without a transition in it.
        env_states: Global states [n, ...] at consecutive env steps up to `env_t`. n exceeds the length of the chunk:
            states of the lookback, and of earlier steps at which a waiting agent acted, come first. A list of such
            arrays stands for their concatenation.
        duration_s: Seconds from the start of the episode to `env_t`.
        respawned: Agents that finished a trajectory in this chunk and start a new one at `env_t`.
        without_steps: The result of `ChunkLanes.without_steps()` if `lanes` is None; empty after slicing or joining.
        reset_seed: Seed passed to `reset()`, if seed and actions together reproduce the episode. None if the runner is
            not seeded or envs share a random generator.
        lanes: Location of the agents' rows, while they are in blocks.
        module_of: Agent id -> module id, filled in by `module_for()`.
        open_actions: For episodes built by hand: waiting agent -> (action, extra outputs). None otherwise.
        early_rewards: For episodes built by hand: agent id -> reward received while no action was pending, which counts
            towards the agent's next transition.
        begun_at: For episodes built by hand: start time according to `time.perf_counter()` in this process.
    """

    id_: str
    env_t_started: int
    env_t: int
    agent_episodes: dict[Hashable, SingleAgentEpisode] | None = None
    lookback: int = 0
    is_terminated: bool = False
    is_truncated: bool = False
    agent_to_module_mapping_fn: Callable[[Any, Any], str] | None = None
    observation_space: Mapping[Any, gym.Space[Any]] = field(default_factory=dict)
    action_space: Mapping[Any, gym.Space[Any]] = field(default_factory=dict)
    common_infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    waiting_infos: dict[Hashable, dict[int, dict[str, Any]]] = field(default_factory=dict)
    hanging_rewards: dict[Hashable, float] = field(default_factory=dict)
    custom_data: dict[str, Any] = field(default_factory=dict)
    agent_ids: Collection[Hashable] = ()
    env_states: np.ndarray | list[np.ndarray] | None = None
    duration_s: float = 0.0
    respawned: Collection[Hashable] = ()
    without_steps: Sequence[SingleAgentEpisode] = ()
    reset_seed: int | None = None
    lanes: ChunkLanes | None = None
    module_of: dict[Hashable, str] = field(default_factory=dict)
    open_actions: dict[Hashable, tuple[Any, dict[str, Any]]] | None = None
    early_rewards: dict[Hashable, float] = field(default_factory=dict)
    begun_at: float | None = None

    @property
    def is_under_way(self) -> bool:
        """True while a runner is sampling the episode."""
        return self.lanes is not None and self.lanes.is_under_way


class UnreadChunks(ChunkNotes):
    """The chunks of a single `sample()` call, not yet decoded.

    Chunks are appended as they end and can be read at any time after `seal()`.
    """

    def seal(
        self,
        scatter: Scatter,
        agent_ids: list[Hashable],
        spaces: list[dict[Hashable, Spaces]],
        blocks: tuple[Block, ...],
        module_ids: Sequence[str],
        acting_from: list[int],
    ) -> None:
        """Record where the rows of all lanes are.

        Args:
            agent_ids: Agent ids, indexed by lane.
            spaces: One dict per env, covering all agents with lanes.
            blocks, module_ids, acting_from: Indexed by module index.
        """
        self._columns = scatter.lanes_now(self.lanes)
        self._agent_ids, self._spaces = tuple(map(agent_ids.__getitem__, self.lanes)), spaces
        self._blocks, self._module_ids, self._acting_from = blocks, module_ids, list(acting_from)

    def n_rows(self, index: int) -> int:
        """Return the number of rows in all lanes of the chunk at this index."""
        return int(self._columns[self._lanes_of(index), COUNT].sum())

    def _lanes_of(self, index: int) -> slice:
        return slice(int(self.numbers[index - 1, -1]) if index else 0, int(self.numbers[index, -1]))

    def unbuilt(self, places: list[tuple[int, OwnData | None]]) -> Unbuilt:
        """Return the numeric form of the chunks given as pairs (index, own data)."""
        indices = [index for index, _ in places]
        times, n_lanes, agent_ids, columns = self.lanes_of(indices, self._columns, self._agent_ids)
        return Unbuilt(
            ids=[self.ids[index] for index in indices],
            times=times,
            are_done=(self.numbers[indices, FLAGS] != 0).tolist(),
            env_states=[None if own_data is None else own_data[2] for _, own_data in places],
            n_lanes=n_lanes,
            agent_ids=agent_ids,
            columns=columns,
            blocks=self._blocks,
            module_ids=self._module_ids,
        )

    def head(self, index: int, own_data: OwnData | None) -> ChunkHead | None:
        """Return the head of the chunk at this index; None if it has other data, such as infos or waiting agents."""
        if own_data is not None and (own_data[0] or own_data[1] or own_data[2] is not None):
            return None
        head = self._head(index)
        is_over = head.is_terminated or head.is_truncated
        waits = not is_over and waiting_places(self._columns[self._lanes_of(index)], self._acting_from)
        return None if waits else head

    def _head(self, index: int) -> ChunkHead:
        return self.head_of(index, self._agent_ids, ChunkHead)

    def read(self, index: int, own_data: OwnData | None) -> Chunk:
        """Return the chunk at this index; `own_data` is the data that its episode stores."""
        own_infos, custom_data, env_states = own_data or ((), {}, None)
        head, at = self._head(index), self._lanes_of(index)
        infos: dict[int, dict[int, dict[str, Any]]] = {}
        for t, lane, info in own_infos:
            infos.setdefault(lane, {})[t] = info
        lanes = ChunkLanes(
            agent_ids=head.agent_ids,
            lanes=tuple(self.lanes[at]),
            columns=self._columns[at].copy(),
            blocks=self._blocks,
            module_ids=self._module_ids,
            episode_id=head.id_,
            spaces=self._spaces[int(self.numbers[index, 0])],
            infos=infos,
        )
        is_over = head.is_terminated or head.is_truncated
        return Chunk(
            **head._asdict(),
            common_infos=infos.get(-1, {}),
            hanging_rewards={} if is_over else lanes.hanging_rewards(self._acting_from),
            custom_data=custom_data,
            env_states=env_states,
            lanes=lanes,
        )
