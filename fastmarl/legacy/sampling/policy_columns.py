"""The steps of one policy's agents, as columns.

Axes in names: S trajectory (one agent's steps in a chunk), N step, Q sequence of a recurrent policy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastmarl.core.batches.trajectories import RECORDED, trajectories_of
from fastmarl.core.columns import Columns, Recorded, recorded_name
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.errors import BatchError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.legacy.batches.sample_batch import SampleBatch
from fastmarl.legacy.sampling.episodes_under_way import EpisodeUnderWay

AGENT_INDEX, T, UNROLL_ID = "agent_index", "t", "unroll_id"


class PolicyColumns:
    """Columns of trajectories, one after the other.

    Args:
        module: the policy's.
        agent_episodes: each with a step or more.
        chunks: of each, the chunk that it is in.
        episodes: by id, those of the chunks.
        first_unroll_id: the number of the first trajectory; the others follow.
        max_seq_len: steps of recurrent policies' sequences.

    Attributes:
        columns: see `BatchBuilder.build()`; without those of sequences.
        length_S: int64 [s], steps of each trajectory.

    Raises:
        BatchError: the module has an output with the name of the action masks.
    """

    def __init__(
        self,
        module: RLModule,
        agent_episodes: Sequence[SingleAgentEpisode],
        chunks: Sequence[MultiAgentEpisode],
        episodes: Mapping[str, EpisodeUnderWay],
        first_unroll_id: int,
        max_seq_len: int,
    ):
        self.chunks = chunks
        self.agent_ids = [agent_episode.agent_id for agent_episode in agent_episodes]
        self._trajectories = trajectories = trajectories_of(agent_episodes)
        self._max_seq_len = max_seq_len
        self._state_paths = [path for path, _ in flatten_struct(module.get_initial_state())]
        self.length_S = length_S = trajectories.length_S
        self._steps = steps = trajectories.steps_after_lookback()
        outputs = trajectories.wanted_outputs(None)
        if Recorded.ACTION_MASK in outputs:
            raise BatchError(f"{type(module._net()).__name__} has an output {Columns.ACTION_MASK!r}, the name of the "
                             f"action masks in a SampleBatch; give the output another name")  # fmt: skip
        columns = trajectories.read_all([*RECORDED, *(name for name in outputs if isinstance(name, str))], steps)
        columns[Columns.REWARDS] = columns[Columns.REWARDS].astype(np.float32)
        columns |= trajectories.end_flags()
        columns[Columns.NEXT_OBS] = trajectories.obs_after(steps)
        columns[Columns.INFOS] = _infos(agent_episodes, int(length_S.sum()))
        columns[T] = trajectories.env_ts(steps)
        episode_S = [episodes[chunk.id_] for chunk in chunks]
        index_S = [episode.agent_index[agent_id] for episode, agent_id in zip(episode_S, self.agent_ids, strict=True)]
        columns[Columns.EPS_ID] = np.repeat([episode.number for episode in episode_S], length_S)
        columns[UNROLL_ID] = np.repeat(np.arange(first_unroll_id, first_unroll_id + len(length_S)), length_S)
        columns[AGENT_INDEX] = np.repeat(index_S, length_S)
        self.columns: dict[str, Any] = columns

    def final_obs(self) -> Any:
        """[s, ...], the observation after each trajectory's last step."""
        return self._trajectories.final_obs()

    def final_states(self) -> list[np.ndarray]:
        """The leaves of the recurrent states after each trajectory's last step, [s, ...]; [] without memory."""
        return self._states(Columns.STATE_OUT, self._trajectories.last_S)

    def sequences(self) -> dict[str, np.ndarray]:
        """ "seq_lens" int32 [q] and "state_in_0" and so on [q, ...]; {} without memory."""
        n_S = -(-self.length_S // self._max_seq_len)
        trajectory_Q = np.repeat(np.arange(len(n_S)), n_S)
        before_Q = (np.arange(len(trajectory_Q)) - np.repeat(np.cumsum(n_S) - n_S, n_S)) * self._max_seq_len
        states = self._states(self._state_in, self._trajectories.first_S[trajectory_Q] + before_Q)
        if not states:
            return {}
        length_Q = np.minimum(self._max_seq_len, self.length_S[trajectory_Q] - before_Q).astype(np.int32)
        return {Columns.SEQ_LENS: length_Q, **{f"state_in_{i}": leaf for i, leaf in enumerate(states)}}

    def trajectories(self) -> list[Any]:
        """A SampleBatch of each trajectory, views of the columns; with memory also "state_out_0" and so on [n, ...]."""
        states_out = {f"state_out_{i}": leaf for i, leaf in enumerate(self._states(Columns.STATE_OUT, self._steps))}
        columns, sequences = self.columns | states_out, self.sequences()
        n_S = -(-self.length_S // self._max_seq_len)
        batches, begin, first = [], 0, 0
        for length, n in zip(self.length_S.tolist(), n_S.tolist(), strict=True):
            steps, of_them = slice(begin, begin + length), slice(first, first + n)
            batches.append(SampleBatch({
                **{name: _part(column, steps) for name, column in columns.items()},
                **{name: column[of_them] for name, column in sequences.items()},
            }))  # fmt: skip
            begin, first = begin + length, first + n
        return batches

    @property
    def _state_in(self) -> Any:
        return recorded_name(Recorded.STATE_IN, self._trajectories.output_keys())

    def _states(self, name: Any, steps: np.ndarray) -> list[np.ndarray]:
        if not self._state_paths:
            return []
        by_path = dict(flatten_struct(self._trajectories.read(name, steps)))
        return [by_path[path] for path in self._state_paths]


def _part(column: Any, steps: slice) -> Any:
    return map_struct(lambda leaf: leaf[steps], column)


def _infos(agent_episodes: Sequence[SingleAgentEpisode], n: int) -> np.ndarray:
    """object [n]: the info that came with each observation acted upon."""
    infos = (info for agent_episode in agent_episodes for info in agent_episode.get_infos()[:-1])
    return np.fromiter(infos, object, n)
