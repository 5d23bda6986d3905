"""What callbacks and connectors mostly ask of one agent of a running episode, answered from the lane's rows."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from fastmarl.errors import RunningEpisodeError
from fastmarl.rllib.episodes.agent_in_view import become
from fastmarl.rllib.episodes.in_view import EpisodeInView
from fastmarl.rllib.episodes.lists import items_of
from fastmarl.rllib.episodes.sample_block import nested_outputs
from fastmarl.rllib.recording.block import PYTHON_FLOAT
from fastmarl.rllib.recording.rewards import rewards_of
from fastmarl.rllib.recording.store import RLlibStore

if TYPE_CHECKING:
    from fastmarl.rllib.sampling.record_answers import RecordAnswers


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
        if hasattr(type(in_view), "is_in_view"):  # sample() has returned the episode, which nobody had read as a whole
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
        """Of completed steps, those of the lookback first."""
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
        """The same of actions; None: only the whole episode has them."""
        block, rows = self._store.blocks[self._table.module_L[self._lane]], self._store.rows_of(self._lane)
        if self._table.final_L[self._lane] < 0:
            rows = rows[:-1]  # which has led to none yet
        if block.former or not len(rows):
            return None
        columns = {key: column[rows] for key, column in block.outputs.items()}
        actions, _ = nested_outputs(columns, None)
        return None if actions is None else items_of(actions, block.type_of_scalars("actions"))
