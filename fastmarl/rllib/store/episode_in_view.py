"""Views of running episodes for RLlib callbacks and connectors, which build the episode as late as possible.

Common queries are answered from the recorded rows. Any other query, or an assignment, builds the full episode, with
lists as in the RLlib loop. From then on, each step is added to it as in that loop, so that changes made by callbacks
are kept.
"""

from collections.abc import Hashable
from time import perf_counter
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from fastmarl.core.errors import RunningEpisodeError
from fastmarl.rllib.episodes.lists import ListedColumn, unite_dtypes
from fastmarl.rllib.episodes.sample_block import is_set
from fastmarl.rllib.store.builder import RLlibChunk
from fastmarl.rllib.store.lane_steps import actions_of, rewards_of
from fastmarl.rllib.store.records import RLlibRecord
from fastmarl.rllib.store.running_episodes import RunningEpisodes
from fastmarl.rllib.store.view_classes import AgentsInView, agent_in_view, become, in_view_kind, is_last

# Attribute of an episode -> attribute of its record with the same value.
OF_RECORD = {"id_": "id_", "agent_to_module_mapping_fn": "policy_mapping_fn", "_agent_to_module_mapping": "mapping"}
OWN = ("_custom_data", "observation_space")  # slots not overwritten when the full episode is built


def prune(episode: Any) -> None:
    """Remove agents without a step, as RLlib does when an episode finishes."""
    for agent_id in [agent_id for agent_id, part in episode.agent_episodes.items() if not len(part)]:
        del episode.agent_episodes[agent_id]


class EpisodeInView:
    """Answers queries about an episode from its record, and builds the full episode if the record has no answer.

    Args:
        episodes: Builds full episodes.
        record: Record of the episode.
        whole: The episode, if it has been built already.

    Attributes:
        episode: The object passed to callbacks.
        is_built: True if the full episode has been built.
        ended: The last chunk of the episode once it has finished, else None.
        passing: Lane -> latest observation, while a connector runs on it.
    """

    def __init__(self, episodes: RunningEpisodes, record: RLlibRecord, whole: Any = None):
        self.is_built = whole is not None
        self.episode = episodes.outline(record, record.env_t_started, record.env_t_started) if whole is None else whole
        self.ended: RLlibChunk | None = None
        self.passing = episodes.passing
        self.record = record
        self.store = episodes.store
        self._episodes = episodes
        self._kind = type(self.episode)
        self._arrays: list[ListedColumn] = []  # columns converted to lists
        self._is_open = False
        self._parts = AgentsInView(self)
        self._parts_at: tuple[RLlibChunk | None, int] | None = None  # (last chunk, number of agents) when last filled
        if not self.is_built:
            self.episode.__class__ = in_view_kind(self._kind)  # type: ignore[arg-type]
            self.episode._origin = (self, 0)

    def __enter__(self) -> Any:
        """Allow reading the episode until the end of the `with` statement."""
        self._is_open = True
        return self.episode

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forbid further reads of the episode."""
        self._is_open = False

    def check_open(self) -> None:
        """Raise RunningEpisodeError unless the call that received the episode is still running."""
        if not self._is_open:
            raise RunningEpisodeError(
                "a running episode can only be read while a callback or connector runs; store what you need in its "
                "custom_data, or read the episodes that sample() returns"
            )

    # The full episode.

    def built(self) -> Any:
        """Build the full episode, if necessary, and return it."""
        with self as episode:
            self.build()
        return episode

    def build(self) -> None:
        """Build the full episode in its current state."""
        if self.is_built:
            return
        self.check_open()
        made, record = self._made(), self.record
        if self.ended is not None:
            prune(made)
        made._agent_to_module_mapping = record.mapping
        made._last_step_time = perf_counter() if len(made) else None
        agents = made.agent_episodes
        for agent_id, lane in record.lane_of.items():
            if lane in self.passing and agent_id in agents:
                agents[agent_id].observations.data[-1] = self.passing[lane]
        for agent_id, part in self._parts.items():
            if agent_id in agents:
                become(part, agents[agent_id])
                agents[agent_id] = part
        self.become(made)
        del self.episode._origin

    def _made(self) -> Any:
        """Build the episode as in the RLlib loop, with the latest observations as stored."""
        record, episodes = self.record, self._episodes
        if record.awaits_reset:
            return episodes.empty(record, record.policy_mapping_fn)
        return episodes.built(self.ended or episodes.chunk_of(record), record.policy_mapping_fn, self._arrays)

    def build_agent(self, part: Any) -> None:
        """Turn a view of an agent episode into the full agent episode."""
        self.build()
        if type(part) is SingleAgentEpisode:
            return
        made = self.episode.agent_episodes.get(part.agent_id)  # if sample() has returned it, this builds it
        if made is None:
            raise RunningEpisodeError(f"agent {part.agent_id!r} completed no step in this chunk, so it has no episode")
        become(part, made)

    def become(self, made: Any) -> Any:
        """Copy `made`, an episode of the same class, into the object passed to callbacks, and return that object."""
        episode = self.episode
        self.is_built = True
        episode.__class__ = self._kind
        for name in RLlibEpisode.__slots__:
            if name not in OWN and is_set(made, name):
                setattr(episode, name, getattr(made, name))
        episode._origin = getattr(made, "_origin", None)
        return episode

    def late_attributes(self, _: int) -> dict[str, Any]:
        """Build the full episode and return an empty dict: building already sets every slot."""
        self.build()
        return {}

    def to_numpy(self) -> Any:
        """Convert the lists of a finished episode to arrays and return the episode."""
        for column in self._arrays:
            column.put_back()
        for agent_episode in self.episode.agent_episodes.values():
            unite_dtypes(agent_episode)
            agent_episode.to_numpy()
        return self.episode

    # Assignments by callbacks.

    def adopt(self, name: str, value: Any) -> None:
        """Copy a value that a callback assigned to an attribute in OF_RECORD to the record."""
        if name == "id_" and type(value) is not str:
            raise RunningEpisodeError(f"expected the id_ of an episode to be a str, got {value!r}")
        if value is not None:  # callbacks remove the mapping function for pickling
            setattr(self.record, OF_RECORD[name], value)

    def update_record(self) -> None:
        """Copy the values assigned to the full episode to the record."""
        for name in OF_RECORD if self.is_built else ():
            self.adopt(name, getattr(self.episode, name))

    def takes(self, name: str, value: Any) -> bool:
        """Return True if this value can be assigned without building the full episode."""
        if name == "observation_space":
            return self._episodes.gives_same(self.record.env_index, value)
        if name in OF_RECORD and not self.record.order:  # later, agent episodes also have these values
            self.adopt(name, value)
            return True
        return False

    # Answers from the record. None means that only the full episode has the answer.

    @property
    def env_t(self) -> int:
        """Current env step of the episode."""
        return self.store.table.envs[self.record.env_index].env_t if self.ended is None else self.ended.env_t

    @property
    def is_terminated(self) -> Any:
        """Termination flag of the episode, in the type used by the env."""
        return self.record.is_terminated

    @property
    def is_truncated(self) -> Any:
        """Truncation flag of the episode, in the type used by the env."""
        return self.record.is_truncated

    @property
    def agent_ids(self) -> set[Hashable]:
        """Agents observed in the episode."""
        lane_of = self.record.lane_of
        known = [
            agent_id
            for agent_id in self.record.order
            if self.ended is None or (agent_id in lane_of and self._is_there(lane_of[agent_id]))
        ]
        return set(known)

    def get_return(self) -> Any:
        """Return the total reward of all agents in this chunk, summed agent by agent."""
        record = self.record
        if record.ended_before:
            return None
        lookback_L = self.store.table.lookback_L
        lanes = [record.lane_of[agent_id] for agent_id in record.order]
        return sum(sum(rewards_of(self.store, lane)[lookback_L[lane] :]) for lane in lanes)

    def get_duration_s(self) -> float:
        """Return the seconds since the chunk started."""
        return perf_counter() - self.record.started_at if self.env_t > self.record.env_t_started else 0.0

    def get_agents_that_stepped(self) -> set[Hashable] | None:
        """Return the agents observed in the last env step, as a set in RLlib's order."""
        stepped = self._stepped()
        return None if stepped is None else set(dict.fromkeys(stepped).keys())

    def get_agents_to_act(self) -> set[Hashable] | None:
        """Return the agents observed in the last env step that have not ended, as a set in RLlib's order."""
        stepped = self._stepped()
        if stepped is None:
            return None
        return {agent_id for agent_id in stepped if not any(self.flags_of(self.record.lane_of[agent_id]))}

    def _stepped(self) -> list[Hashable] | None:
        record = self.record
        if record.ended_before or record.unseen:
            return None
        env_t = self.env_t
        stepped = [agent_id for agent_id in record.order if self._observed_at(record.lane_of[agent_id]) == env_t]
        return [agent_id for agent_id in stepped if self._is_there(record.lane_of[agent_id])]

    def _observed_at(self, lane: int) -> int:
        """Return the env step of the last observation of a lane."""
        table = self.store.table
        if table.final_L[lane] >= 0:
            return int(table.end_env_t_L[lane])
        return int(self.store.blocks[table.module_L[lane]].env_t_R[table.row_L[lane]])

    def _is_there(self, lane: int) -> bool:
        """Return True if the agent has an episode: RLlib removes agents without a step at the end of the episode."""
        return self.ended is None or self.n_steps(lane) > 0

    def get(self, name: str, indices: Any, agent_ids: Any, options: dict[str, Any]) -> Any:
        """Return the latest "observations" or "infos" of all agents, or "rewards" or "actions" of completed steps."""
        if agent_ids is not None:
            return None
        if name in ("observations", "infos"):
            if not is_last(indices) or options:
                return None
            return self._newest_observations() if name == "observations" else self._last_infos()
        by_env_steps_or_not = indices is None and options.keys() <= {"env_steps"}  # env_steps does not matter here
        return self._of_completed_steps(name) if by_env_steps_or_not else None

    def _newest_observations(self) -> dict[Hashable, Any] | None:
        """Return agent id -> observation being processed by the current connector."""
        stepped, lane_of = self._stepped(), self.record.lane_of
        if stepped is None or any(lane_of[agent_id] not in self.passing for agent_id in stepped):
            return None
        return {agent_id: self.passing[lane_of[agent_id]] for agent_id in stepped}

    def _last_infos(self) -> dict[Hashable, Any] | None:
        """Return the infos of the agents observed in the last env step."""
        stepped = self._stepped()
        if stepped is None:
            return None
        at_last = self._infos_at_last()
        return {agent_id: self._info_of(self.record.lane_of[agent_id], at_last) for agent_id in stepped}

    def _of_completed_steps(self, name: str) -> dict[Hashable, list[Any]] | None:
        """Return agent id -> rewards or actions, or None if any agent has not ended and may have a hanging action."""
        agents, table = self.agent_episodes(), self.store.table
        lanes = {agent_id: self.record.lane_of[agent_id] for agent_id in agents or ()}
        if agents is None or any(table.final_L[lane] < 0 for lane in lanes.values()):
            return None
        by_agent = {}
        for agent_id, lane in lanes.items():
            values = rewards_of(self.store, lane) if name == "rewards" else actions_of(self.store, lane)
            if values is None:
                return None
            by_agent[agent_id] = values[table.lookback_L[lane] :]
        return by_agent

    # Answers for single agents.

    def agent_episodes(self) -> dict[Hashable, Any] | None:
        """Return agent id -> view of the agent episode."""
        record = self.record
        if record.ended_before or record.ended_agent_episodes:
            return None
        at = self.ended, len(record.order)
        if self._parts_at != at:
            known, lanes = self._parts, {agent_id: record.lane_of[agent_id] for agent_id in record.order}
            self._parts.show(
                {
                    agent_id: known[agent_id] if agent_id in known else self._part(agent_id, lane)
                    for agent_id, lane in lanes.items()
                    if self._is_there(lane)
                }
            )
            self._parts_at = at
        return self._parts

    def _part(self, agent_id: Hashable, lane: int) -> Any:
        _, action_spaces = self._episodes.spaces[self.record.env_index]
        return agent_in_view(
            self,
            lane,
            id_=self.record.agent_episode_ids[agent_id],
            agent_id=agent_id,
            module_id=self.record.mapping[agent_id],
            multi_agent_episode_id=self.record.id_,
            _action_space=action_spaces.get(agent_id),
        )

    def n_steps(self, lane: int) -> int:
        """Return the number of completed steps in this chunk."""
        table = self.store.table
        return int(table.count_L[lane] - 1 + (table.final_L[lane] >= 0) - table.lookback_L[lane])

    def flags_of(self, lane: int) -> tuple[Any, Any]:
        """Return (terminated, truncated) of an agent, which may be np.False_.

        Until the agent ends, these are the flags of the episode, or False before its first step.
        """
        has_stepped = self.store.table.t_started_L[lane] + self.n_steps(lane) > 0
        return self.record.flags.get(lane, (self.is_terminated, self.is_truncated) if has_stepped else (False, False))

    def space_of(self, lane: int) -> Any:
        """Return the observation space of an agent, as defined by the env or set by a connector."""
        observation_spaces, _ = self._episodes.spaces[self.record.env_index]
        space = self.store.spaces.get(lane)
        return observation_spaces.get(self.store.table.agent_ids[lane]) if space is None else space

    def info_of(self, lane: int) -> Any:
        """Return the last info of an agent, if it was observed in the last env step."""
        if self.record.unseen or self._observed_at(lane) != self.env_t:
            return None
        return self._info_of(lane, self._infos_at_last())

    def _info_of(self, lane: int, at_last: dict[int, Any]) -> Any:
        info = at_last.get(lane)
        if info is None:
            info = {}  # stored, because a callback may write to it
            self._infos.append((self.env_t, lane, info))
        return info

    def _infos_at_last(self) -> dict[int, Any]:
        """Return lane -> info of the last env step."""
        infos, env_t = self._infos, self.env_t
        first = len(infos)
        while first and infos[first - 1][0] == env_t:
            first -= 1
        return {lane: info for _, lane, info in infos[first:]}

    @property
    def _infos(self) -> list[tuple[int, int, Any]]:
        infos: list[tuple[int, int, Any]]
        infos = self.store.table.envs[self.record.env_index].infos if self.ended is None else self.ended.infos
        return infos
