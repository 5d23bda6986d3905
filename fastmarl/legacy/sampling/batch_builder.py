"""Chunks of episodes as one batch of RLlib's old API stack: columns by policy, postprocessed.

Axes in names: S trajectory (one agent's steps in a chunk), N step, Q sequence of a recurrent policy.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from fastmarl.core.batches.trajectories import RECORDED, trajectories_of
from fastmarl.core.columns import Columns, Recorded, recorded_name
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.errors import BatchError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.spaces.structs import map_struct
from fastmarl.legacy.batches.sample_batch import MultiAgentBatch, SampleBatch, concat_samples
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.policies.policy_model import PolicyModel
from fastmarl.legacy.policies.ppo_torch_policy import PPOTorchPolicy
from fastmarl.legacy.sampling.episodes_under_way import EpisodeUnderWay

AGENT_INDEX, T, UNROLL_ID = "agent_index", "t", "unroll_id"
PreBatches = dict[Hashable, tuple[str, Policy, Any]]  # agent id -> (policy id, policy, SampleBatch)


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
        self._model = PolicyModel(module)
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
        return self._model.state_leaves(self._trajectories.read(name, steps)) if self._model.num_states else []


def _part(column: Any, steps: slice) -> Any:
    return map_struct(lambda leaf: leaf[steps], column)


def _infos(agent_episodes: Sequence[SingleAgentEpisode], n: int) -> np.ndarray:
    """object [n]: the info that came with each observation acted upon."""
    infos = (info for agent_episode in agent_episodes for info in agent_episode.get_infos()[:-1])
    return np.fromiter(infos, object, n)


class BatchBuilder:
    """Makes batches of chunks.

    Args:
        policies: by policy id; read anew for each batch.
        max_seq_len: steps of recurrent policies' sequences.
    """

    def __init__(self, policies: Mapping[str, Policy], max_seq_len: int):
        self._policies, self._max_seq_len = policies, max_seq_len
        self._n_unrolls = 0

    def build(self, chunks: list[MultiAgentEpisode], episodes: Mapping[str, EpisodeUnderWay]) -> Any:
        """MultiAgentBatch of all steps: trajectories in order of the chunks and, in each, of agents' appearance.
        `episodes` has those of the chunks, by id.

        A policy's columns: "obs", "new_obs", "actions", "infos" (those that came with "obs") and the module's outputs
        [n, ...]; "rewards" float32, "terminateds", "truncateds" bool, "t" (env step of "obs"), "eps_id", "unroll_id"
        (of each trajectory), "agent_index" (by appearance in the episode) int64 [n]; with memory "seq_lens" int32 [q]
        and "state_in_0" and so on [q, ...]; and what the policy's `postprocess_trajectory()` adds.
        """
        by_policy = self._columns(chunks, episodes)
        hooked = [id_ for id_ in by_policy if _at_once(self._policies[id_]) is None]
        post_batches = self._hooked(by_policy, hooked) if hooked else {}
        batches = {}
        for policy_id, columns in by_policy.items():
            policy = self._policies[policy_id]
            at_once = _at_once(policy)
            if at_once is None:
                batch = concat_samples(post_batches[policy_id])
            else:
                at_once(policy, columns)
                batch = SampleBatch({**columns.columns, **columns.sequences()})
            batch.num_grad_updates = policy.num_grad_updates
            batches[policy_id] = batch
        return MultiAgentBatch(batches, sum(map(len, chunks)))

    def _columns(
        self, chunks: list[MultiAgentEpisode], episodes: Mapping[str, EpisodeUnderWay]
    ) -> dict[str, PolicyColumns]:
        """By policy, those that have steps."""
        agent_episodes: defaultdict[str, list[SingleAgentEpisode]] = defaultdict(list)
        chunk_of: defaultdict[str, list[MultiAgentEpisode]] = defaultdict(list)
        for chunk in chunks:
            for agent_id, agent_episode in chunk.agent_episodes.items():
                if len(agent_episode):
                    policy_id = chunk.module_for(agent_id)
                    agent_episodes[policy_id].append(agent_episode)
                    chunk_of[policy_id].append(chunk)
        columns = {}
        for policy_id, of_policy in agent_episodes.items():
            module = self._policies[policy_id].module
            unroll_id, self._n_unrolls = self._n_unrolls, self._n_unrolls + len(of_policy)
            columns[policy_id] = PolicyColumns(
                module, of_policy, chunk_of[policy_id], episodes, unroll_id, self._max_seq_len
            )
        return columns

    def _hooked(self, by_policy: Mapping[str, PolicyColumns], hooked: list[str]) -> dict[str, list[Any]]:
        """What the hooks of these policies return, trajectory by trajectory."""
        in_chunk: defaultdict[int, PreBatches] = defaultdict(dict)
        for policy_id, columns in by_policy.items():
            rows = zip(columns.chunks, columns.agent_ids, columns.trajectories(), strict=True)
            for chunk, agent_id, batch in rows:
                in_chunk[id(chunk)][agent_id] = policy_id, self._policies[policy_id], batch
        post_batches: dict[str, list[Any]] = {policy_id: [] for policy_id in hooked}
        for policy_id in hooked:
            columns, policy = by_policy[policy_id], self._policies[policy_id]
            for chunk, agent_id in zip(columns.chunks, columns.agent_ids, strict=True):
                others = dict(in_chunk[id(chunk)])
                _, _, batch = others.pop(agent_id)
                post_batch = policy.postprocess_trajectory(batch, others, chunk)
                for name in [name for name in post_batch if name.startswith("state_out_")]:
                    del post_batch[name]
                post_batches[policy_id].append(post_batch)
        return post_batches


def _nothing(policy: Any, columns: PolicyColumns) -> None:
    """The hook that changes nothing."""


def _ppo(policy: Any, columns: PolicyColumns) -> None:
    policy.postprocess_trajectories(columns.columns, columns.length_S, columns.final_obs(), columns.final_states())


AT_ONCE: dict[Any, Callable[[Any, PolicyColumns], None]] = {
    Policy.postprocess_trajectory: _nothing,
    PPOTorchPolicy.postprocess_trajectory: _ppo,
}
"""Hooks that are done for all trajectories at once, with the same result."""


def _at_once(policy: Policy) -> Callable[[Any, PolicyColumns], None] | None:
    """What does the policy's hook at once; None: the hook is somebody's own."""
    if "postprocess_trajectory" in vars(policy):
        return None
    return AT_ONCE.get(type(policy).postprocess_trajectory)
