"""What callbacks and connectors mostly ask of a running episode, answered from its record."""

from collections.abc import Hashable, Mapping
from time import perf_counter
from typing import Any

from fastmarl.core.errors import RunningEpisodeError
from fastmarl.rllib.episodes.agent_in_view import agent_in_view, become
from fastmarl.rllib.episodes.in_view import AgentsInView, EpisodeInView
from fastmarl.rllib.episodes.lists import items_of
from fastmarl.rllib.episodes.sample_block import nested_outputs
from fastmarl.rllib.sampling.core import Core
from fastmarl.rllib.store.block import PYTHON_FLOAT
from fastmarl.rllib.store.builder import RLlibChunk
from fastmarl.rllib.store.records import RLlibRecord
from fastmarl.rllib.store.rewards import rewards_of
from fastmarl.rllib.store.store import RLlibStore


class AgentAnswers:
    """Answers for an agent's episode in view.

    Args:
        store: what was recorded.
        record_answers: those for the whole episode.
        view: of the episode.
        agent_id, lane: whose.
    """

    def __init__(
        self, store: RLlibStore, record_answers: "RecordAnswers", view: EpisodeInView, agent_id: Hashable, lane: int
    ):
        self._store, self._table = store, store.table
        self._record_answers = record_answers
        self._view = view
        self._agent_id = agent_id
        self._lane = lane

    def whole(self) -> None:
        """Have the agent's episode whole."""
        self._view.make_whole()
        in_view = self._view.agents[self._agent_id]
        if hasattr(type(in_view), "is_in_view"):  # sample() has returned the episode, not yet read as a whole
            made = self._view.episode.agent_episodes.get(self._agent_id)
            if made is None:
                raise RunningEpisodeError(f"agent {self._agent_id!r} made no step in this chunk: it has no episode")
            become(in_view, made)

    @property
    def is_running(self) -> bool:
        """Whether the record has the answers."""
        if self._view.is_whole:
            return False
        self._view.check_open()
        return True

    @property
    def lookback(self) -> int:
        """Steps in lists that are of the chunk before."""
        return int(self._table.lookback_L[self._lane])

    @property
    def n_steps(self) -> int:
        """Completed steps in this chunk."""
        return self._record_answers.n_steps(self._lane)

    @property
    def t_started(self) -> int:
        """Agent steps at the chunk's begin."""
        return int(self._table.t_started_L[self._lane])

    @property
    def t(self) -> int:
        """Agent steps since the episode's begin."""
        return self.t_started + self.n_steps

    @property
    def flags(self) -> tuple[Any, Any]:
        """Whether it is terminated, and truncated."""
        record = self._record_answers.record
        return record.flags.get(self._lane, (record.is_terminated, record.is_truncated))

    @property
    def observation_space(self) -> Any:
        """The env's, or what a connector has given."""
        space = self._store.spaces.get(self._lane)
        return self._record_answers.space_of(self._agent_id) if space is None else space

    @observation_space.setter
    def observation_space(self, space: Any) -> None:
        self._store.spaces[self._lane] = space

    @property
    def has_newest(self) -> bool:
        """Whether its newest observation goes through a connector at present."""
        return self.is_running and self._lane in self._record_answers.passing

    @property
    def newest(self) -> Any:
        """That observation."""
        return self._record_answers.passing[self._lane]

    @newest.setter
    def newest(self, observation: Any) -> None:
        self._record_answers.passing[self._lane] = observation

    def newest_info(self) -> Any:
        """The last info; None: only the whole episode knows."""
        return self._record_answers.info_of(self._lane)

    def rewards(self) -> list[Any]:
        """Return the rewards of the completed steps, those of the lookback first."""
        return rewards_of(self._store, self._lane)

    def last_reward(self) -> list[Any]:
        """That of the last completed step, if there is one."""
        table = self._table
        block, row = self._store.blocks[table.module_L[self._lane]], int(table.row_L[self._lane])
        if table.final_L[self._lane] < 0:
            row = int(block.prev_R[row])
        if row >= 0 and block.kind_R[row] <= PYTHON_FLOAT:
            return [float(block.reward_R[row])]
        return self.rewards()[-1:]

    def actions(self) -> list[Any] | None:
        """Return the actions of the completed steps; None if only the whole episode has them."""
        block, rows = self._store.blocks[self._table.module_L[self._lane]], self._store.rows_of(self._lane)
        if self._table.final_L[self._lane] < 0:
            rows = rows[:-1]  # which has led to none yet
        if block.former or not len(rows):
            return None
        columns = {key: column[rows] for key, column in block.outputs.items()}
        actions, _ = nested_outputs(columns, None)
        return None if actions is None else items_of(actions, block.type_of_scalars("actions"))


RECORDED_AS = {"id_": "id_", "agent_to_module_mapping_fn": "policy_mapping_fn", "_agent_to_module_mapping": "mapping"}


class RecordAnswers:
    """Answers for an episode in view.

    Args:
        core: the parts to work with.
        record: of the episode.
        passing: lane -> its newest observation, while that goes through a connector.

    Attributes:
        record, passing: these.
        ended: the episode's last chunk, once it has ended.
    """

    def __init__(self, core: Core, record: RLlibRecord, passing: dict[int, Any]):
        self._table, self._store = core.table, core.store
        self._observation_spaces, self._action_spaces = core.spaces[record.env_index]
        self._known_same = core.given_spaces
        self.passing = passing
        self.record = record
        self.ended: RLlibChunk | None = None
        self._viewed: tuple[RLlibChunk | None, int] | None = (
            None  # of how many agents, when they were put together last
        )

    @property
    def env_t(self) -> int:
        """Env steps up to now."""
        return self._table.envs[self.record.env_index].env_t if self.ended is None else self.ended.env_t

    @property
    def flags(self) -> tuple[Any, Any]:
        """Whether it is terminated, and truncated."""
        return self.record.is_terminated, self.record.is_truncated

    def adopt(self, name: str, value: Any) -> None:
        """Go on with what a callback has written on the episode, one of OF_RECORD."""
        if name == "id_" and type(value) is not str:
            raise RunningEpisodeError(f"the id_ of an episode was set to {value!r}; make it a str")
        if value is not None:  # a mapping function is taken away for pickling
            setattr(self.record, RECORDED_AS[name], value)

    @property
    def agents(self) -> list[Hashable]:
        """Those of RLlib's chunk, in its order."""
        return self.record.order

    def episode_return(self) -> Any:
        """Sum of the sums of the agents' rewards in this chunk; None: only the whole episode knows."""
        record = self.record
        if record.ended_before:
            return None
        lookback_L = self._table.lookback_L
        lanes = [record.lane_of[agent_id] for agent_id in record.order]
        return sum(sum(rewards_of(self._store, lane)[lookback_L[lane] :]) for lane in lanes)

    def duration_s(self) -> float:
        """Seconds since the chunk began."""
        return perf_counter() - self.record.started_at if self.env_t > self.record.env_t_started else 0.0

    def last_infos(self) -> dict[Hashable, Any] | None:
        """Infos of the agents observed in the last env step; None: only the whole episode knows."""
        stepped = self.stepped()
        if stepped is None:
            return None
        at_last = {lane: info for env_t, lane, info in _newest(self._infos, self.env_t)}
        return {agent_id: self._info_of(self.record.lane_of[agent_id], at_last) for agent_id in stepped}

    def info_of(self, lane: int) -> Any:
        """The last info of an agent that was observed in the last env step; None: only the whole episode knows."""
        if self.record.unseen or self._observed_at(lane) != self.env_t:
            return None
        return self._info_of(lane, {each: info for env_t, each, info in _newest(self._infos, self.env_t)})

    def _info_of(self, lane: int, at_last: dict[int, Any]) -> Any:
        info = at_last.get(lane)
        if info is None:
            info = {}  # recorded, as somebody may write into it
            self._infos.append((self.env_t, lane, info))
        return info

    @property
    def _infos(self) -> list[tuple[int, int, Any]]:
        infos: list[tuple[int, int, Any]]
        infos = self._table.envs[self.record.env_index].infos if self.ended is None else self.ended.infos
        return infos

    def stepped(self) -> list[Hashable] | None:
        """The agents observed in the last env step, in RLlib's order; None: only the whole episode knows."""
        record = self.record
        if record.ended_before or record.unseen:
            return None
        env_t = self.env_t
        stepped = [agent_id for agent_id in record.order if self._observed_at(record.lane_of[agent_id]) == env_t]
        return [agent_id for agent_id in stepped if self._is_there(record.lane_of[agent_id])]

    def _observed_at(self, lane: int) -> int:
        """The env step of a lane's last observation."""
        table = self._table
        if table.final_L[lane] >= 0:
            return int(table.end_env_t_L[lane])
        return int(self._store.blocks[table.module_L[lane]].env_t_R[table.row_L[lane]])

    def _is_there(self, lane: int) -> bool:
        """Whether its agent has an episode: RLlib takes those without a step away when the episode has ended."""
        return self.ended is None or self.n_steps(lane) > 0

    def n_steps(self, lane: int) -> int:
        """Completed steps in this chunk."""
        table = self._table
        return int(table.count_L[lane] - 1 + (table.final_L[lane] >= 0) - table.lookback_L[lane])

    # The same for callbacks and connectors that look at single agents.

    def agents_in_view(self, view: EpisodeInView) -> AgentsInView | None:
        """The agents' episodes, not made yet; None: only the whole episode has them all."""
        record = self.record
        if record.ended_before or record.ended_agent_episodes:
            return None
        if self._viewed == (self.ended, len(record.order)):
            return view.agents
        agents = {}
        for agent_id in record.order:
            lane = record.lane_of[agent_id]
            if self._is_there(lane):
                known = view.agents.get(agent_id)
                agents[agent_id] = self._agent_in_view(view, agent_id, lane) if known is None else known
        view.agents, self._viewed = AgentsInView(view, agents), (self.ended, len(record.order))
        return view.agents

    def of_completed_steps(self, name: str, view: EpisodeInView) -> dict[Hashable, list[Any]] | None:
        """All agents' "rewards" or "actions" in this chunk; None: only the whole episode has them.

        Agents that have not ended may wait with an action that no completed step has yet.
        """
        agents, record = self.agents_in_view(view), self.record
        if agents is None or any(self._table.final_L[record.lane_of[agent_id]] < 0 for agent_id in agents):
            return None
        by_agent = {}
        for agent_id in agents:
            answers = AgentAnswers(self._store, self, view, agent_id, record.lane_of[agent_id])
            values = answers.rewards() if name == "rewards" else answers.actions()
            if values is None:
                return None
            by_agent[agent_id] = values[answers.lookback :]
        return by_agent

    def _agent_in_view(self, view: EpisodeInView, agent_id: Hashable, lane: int) -> Any:
        record = self.record
        return agent_in_view(
            AgentAnswers(self._store, self, view, agent_id, lane),
            id_=record.agent_episode_ids[agent_id],
            agent_id=agent_id,
            module_id=record.mapping[agent_id],
            multi_agent_episode_id=record.id_,
            _action_space=self._action_spaces.get(agent_id),
        )

    def newest_observations(self) -> dict[Hashable, Any] | None:
        """Those that go through a connector at present, by agent id; None: only the whole episode knows."""
        stepped, lane_of = self.stepped(), self.record.lane_of
        if stepped is None or any(lane_of[agent_id] not in self.passing for agent_id in stepped):
            return None
        return {agent_id: self.passing[lane_of[agent_id]] for agent_id in stepped}

    def space_of(self, agent_id: Hashable) -> Any:
        """The env's observation space for an agent."""
        return self._observation_spaces.get(agent_id)

    def gives_same(self, spaces: Any) -> bool:
        """Whether agents that come would have the same observation spaces with these."""
        env_index, known_same = self.record.env_index, self._known_same
        if known_same.get(env_index) is not spaces:
            if not isinstance(spaces, Mapping) or dict(spaces) != self._observation_spaces:
                return False
            known_same[env_index] = spaces
        return True


def _newest(infos: list[tuple[int, int, Any]], env_t: int) -> list[tuple[int, int, Any]]:
    """Those of the last env step."""
    first = len(infos)
    while first and infos[first - 1][0] == env_t:
        first -= 1
    return infos[first:]
