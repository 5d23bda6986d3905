"""The result of a sample() call as a few arrays, from which RLlib episodes are built locally or at the receiver.

Each module has one array per column, ordered by agent; agent episodes are views of these arrays, built on first access.
Unmodified episodes are sent as this single block, modified ones as in RLlib.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.utils.spaces.space_utils import get_base_struct_from_space

from fastmarl.core.native import _rllib_episodes as compiled
from fastmarl.core.native._rllib_episodes import view
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import nested_struct
from fastmarl.core.store.block import Key


@dataclass(eq=False, repr=False)
class ModuleColumns:
    """Columns of a module, [n, ...] each, ordered by agent; each agent has one more observation than steps.

    Attributes:
        layout: Layout of the observations.
        leaves: Leaves of the observations, or a function returning them, called on first access.
        env_ts: int32, env step of each row; rows are non-final observations.
        rewards: Reward of each step.
        outputs: Flat key -> outputs of each step, including actions.
        seq_nos: Weights sequence number of each step.
    """

    layout: Any
    leaves: list[np.ndarray] | Callable[[], list[np.ndarray]]
    env_ts: np.ndarray
    rewards: np.ndarray
    outputs: dict[Key, np.ndarray]
    seq_nos: np.ndarray

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "leaves": self.obs}

    @property
    def obs(self) -> list[np.ndarray]:
        """Leaves of the observations."""
        if callable(self.leaves):
            self.leaves = self.leaves()
        return self.leaves

    def nested_obs(self, begin: int, end: int) -> Any:
        """Return the observations [begin, end), nested."""
        if self.layout.is_array:
            return view(self.obs[0], begin, end)
        return self.layout.nest([view(leaf, begin, end) for leaf in self.obs])

    def nested_outputs(self, begin: int, end: int) -> tuple[Any, dict[str, Any]]:
        """Return (actions, other outputs) of the steps [begin, end)."""
        slices = {key: view(column, begin, end) for key, column in self.outputs.items()}
        return nested_outputs(slices, view(self.seq_nos, begin, end))


class AgentMeta(NamedTuple):
    """Location of the agent data in the module columns, and other attributes of the agent."""

    agent_id: Hashable
    module: int
    module_id: str
    agent_episode_id: str | None
    """None if the agent completed no step and thus has no SingleAgentEpisode."""
    rows: tuple[int, int]
    steps: tuple[int, int]
    obs_begin: int
    lookback: int
    t_started: int
    flags: tuple[Any, Any]
    time_map: tuple[int, int, int, int]
    """Arguments of `_rllib_episodes.time_map()`."""
    infos: list | None
    odd: dict[str, Any] | None
    """Columns that are not slices of the module columns: "observations", "rewards", "actions", "extras"."""
    space: Any
    """Observation space set by a connector in the agent episode, or None for the space of the env."""


@dataclass(slots=True)
class ChunkMeta:
    """Attributes of an episode chunk."""

    id_: str
    env_index: int
    mapping_fn: Any
    env_t_started: int
    env_t: int
    lookback: int
    flags: tuple[Any, Any]
    mapping: dict[Hashable, str]
    unobserved_rewards: dict[Hashable, Any]
    """Rewards received by agents before their first observation."""
    custom_data: dict
    clock: tuple[float, float]
    map_order: list[Hashable]
    agents: list[AgentMeta] = field(default_factory=list)
    agent_t_started: dict[Hashable, int] = field(default_factory=dict)
    hanging: dict[Hashable, tuple[Any, dict[str, Any] | None, Any]] = field(default_factory=dict)
    """Agents waiting for an observation after acting -> (action, other outputs, accumulated reward)."""


@dataclass(eq=False, repr=False)
class SampleBlock:
    """All chunks returned by a sample() call.

    Attributes:
        modules: Columns per module index; None for modules without rows.
        chunks: The chunks in the order in which they are returned.
        spaces: Per env, ({agent id: observation space}, {agent id: action space}).
        episode_class: fastmarl.rllib.episodes.episode.MultiAgentEpisode or a subclass.
        structs: Cache of the spaces and their structs.
    """

    modules: list[ModuleColumns | None]
    chunks: list[ChunkMeta]
    spaces: list[tuple[dict, dict]]
    episode_class: type
    structs: dict[tuple[int, Hashable, int], tuple]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "structs": {}}

    def episodes(self) -> list[Any]:
        """Build the episodes of all chunks, in order."""
        return [self.episode(i) for i in range(len(self.chunks))]

    def episode(self, i: int) -> Any:
        """Build the episode of a chunk, without the attributes that `late_attributes()` builds."""
        chunk = self.chunks[i]
        episode: Any = object.__new__(self.episode_class)
        episode._origin = (self, i)
        episode.id_ = chunk.id_
        episode.agent_to_module_mapping_fn = chunk.mapping_fn
        episode._agent_to_module_mapping = dict(chunk.mapping)
        episode._len_lookback_buffers = chunk.lookback
        episode.observation_space, episode.action_space = self.spaces[chunk.env_index]
        episode.env_t_started, episode.env_t = chunk.env_t_started, chunk.env_t
        episode.agent_t_started = defaultdict(int, chunk.agent_t_started)
        episode._hanging_actions_end = {agent_id: action for agent_id, (action, _, _) in chunk.hanging.items()}
        extras = {agent_id: extras and dict(extras) for agent_id, (_, extras, _) in chunk.hanging.items()}
        episode._hanging_extra_model_outputs_end = defaultdict(dict, extras)
        rewards = {agent_id: reward for agent_id, (_, _, reward) in chunk.hanging.items()}
        episode._hanging_rewards_end = defaultdict(float, rewards)
        episode._hanging_rewards_begin = defaultdict(float, chunk.unobserved_rewards)
        episode.is_terminated, episode.is_truncated = chunk.flags
        episode._custom_data = chunk.custom_data
        episode._start_time, episode._last_step_time = chunk.clock
        return episode

    def late_attributes(self, i: int) -> dict[str, dict]:
        """Build the agent episodes and time maps of an episode, and return attribute name -> value."""
        chunk = self.chunks[i]
        agent_episodes: dict[Hashable, Any] = {}
        maps: dict[Hashable, Any] = defaultdict(compiled.InfiniteLookbackBuffer)
        for agent in chunk.agents:
            columns = self.modules[agent.module]
            assert columns is not None
            begin, end = agent.rows
            time_map = compiled.time_map(view(columns.env_ts, begin, end), *agent.time_map)
            maps[agent.agent_id] = compiled.buffer_of(time_map, chunk.lookback, False, None, None)
            if agent.agent_episode_id is not None:
                spaces = self._agent_spaces(chunk.env_index, agent)
                agent_episodes[agent.agent_id] = compiled.agent_episode_of(
                    agent, columns, chunk.id_, spaces, chunk.clock
                )
        for agent_id in chunk.map_order:
            maps[agent_id] = maps.pop(agent_id)
        return {"agent_episodes": agent_episodes, "env_t_to_agent_t": maps}

    def _agent_spaces(self, env_index: int, agent: AgentMeta) -> tuple:
        """Return (observation space, its struct, action space, its struct), as stored in RLlib buffers."""
        key = env_index, agent.agent_id, id(agent.space)  # the cached value keeps the space alive, and its id valid
        found = self.structs.get(key)
        if found is None:
            observations, actions = (part.get(agent.agent_id) for part in self.spaces[env_index])
            spaces = observations if agent.space is None else agent.space, actions
            found = tuple(made for space in spaces for made in (space, get_base_struct_from_space(space)))
            self.structs[key] = found
        return found


def nested_outputs(columns: dict[Key, Any], seq_nos: Any) -> tuple[Any, dict[str, Any]]:
    """Nest flat outputs and return (actions, other outputs); the latter include `seq_nos` unless they are empty."""
    columns = nested_columns(columns)  # type: ignore[assignment]
    extras: dict[str, Any] = {}
    for name, column in columns.items():
        if name != "actions":
            extras[name] = column  # type: ignore[index]
            if len(extras) == 1:
                extras[Columns.WEIGHTS_SEQ_NO] = seq_nos
    return columns.get("actions"), extras


def nested_columns(columns: dict[Key, Any]) -> dict[str, Any]:
    """Nest flat columns as in the output of the module."""
    if all(type(key) is str for key in columns):
        return columns  # type: ignore[return-value]
    nested: dict[str, Any] = nested_struct({key if isinstance(key, tuple) else (key,): columns[key] for key in columns})
    return nested


def is_set(episode: RLlibEpisode, slot: str) -> bool:
    """Return True if this slot of the RLlib class has a value, without triggering its lazy creation."""
    try:
        getattr(RLlibEpisode, slot).__get__(episode)
    except AttributeError:
        return False
    return True
