"""Batches of the old RLlib API stack, built from episode chunks as postprocessed columns per policy.

Axes in names: S trajectory (steps of an agent in a chunk), N step, Q sequence of a recurrent policy.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from fastmarl.core.batches.trajectories import RECORDED, trajectories_of
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.errors import BatchError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.spaces.columns import Columns, Recorded, recorded_name
from fastmarl.core.spaces.structs import map_struct
from fastmarl.legacy.batches.sample_batch import MultiAgentBatch, SampleBatch, concat_samples
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.policies.policy_model import PolicyModel
from fastmarl.legacy.policies.ppo_torch_policy import PPOTorchPolicy
from fastmarl.legacy.sampling.episode_view import EpisodeV2
from fastmarl.legacy.sampling.episodes_under_way import EpisodeUnderWay
from fastmarl.legacy.sampling.worker_callbacks import WorkerCallbacks

AGENT_INDEX, T, UNROLL_ID = "agent_index", "t", "unroll_id"
PreBatches = dict[Hashable, tuple[str, Policy, Any]]  # agent id -> (policy id, policy, SampleBatch)


class PolicyColumns:
    """Columns of the concatenated trajectories of a policy.

    Args:
        module: Module of the policy.
        agent_episodes: Agent episodes of the policy, each with at least one step.
        chunks: The chunk of each agent episode.
        episodes: Episode id -> episode of the chunks.
        first_unroll_id: "unroll_id" of the first trajectory; the following ones are consecutive.
        max_seq_len: Maximum number of steps in a sequence of a recurrent policy.

    Attributes:
        columns: Columns as in `BatchBuilder.build()`, but without "seq_lens", "state_in_0" and so on.
        length_S: int64 [s], the length of each trajectory.

    Raises:
        BatchError: If a module output is named like the column of action masks.
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
                             f"column of action masks in a SampleBatch; rename the output")  # fmt: skip
        columns = trajectories.read_all([*RECORDED, *(name for name in outputs if isinstance(name, str))], steps)
        columns[Columns.REWARDS] = columns[Columns.REWARDS].astype(np.float32)
        columns |= trajectories.end_flags()
        columns[Columns.NEXT_OBS] = trajectories.obs_after(steps)
        columns[Columns.INFOS] = _infos(agent_episodes, int(length_S.sum()))
        columns[T] = self._ts(steps)
        episode_S = [episodes[chunk.id_] for chunk in chunks]
        index_S = [episode.agent_index[agent_id] for episode, agent_id in zip(episode_S, self.agent_ids, strict=True)]
        columns[Columns.EPS_ID] = np.repeat([episode.number for episode in episode_S], length_S)
        columns[UNROLL_ID] = np.repeat(np.arange(first_unroll_id, first_unroll_id + len(length_S)), length_S)
        columns[AGENT_INDEX] = np.repeat(index_S, length_S)
        self.columns: dict[str, Any] = columns

    def _ts(self, steps: np.ndarray) -> np.ndarray:
        """Return "t" of each step, int64 [n]: the env step before its next observation."""
        trajectories = self._trajectories
        arrived = trajectories.env_ts(steps)
        following = np.empty_like(arrived)
        following[:-1] = arrived[1:]
        following[np.cumsum(self.length_S) - 1] = trajectories.final_env_t()
        return following - 1

    def final_obs(self) -> Any:
        """Return the observation after the last step of each trajectory, [s, ...]."""
        return self._trajectories.final_obs()

    def final_states(self) -> list[np.ndarray]:
        """Return the leaves [s, ...] of recurrent states after the last steps of trajectories; [] if not recurrent."""
        return self._states(Columns.STATE_OUT, self._trajectories.last_S)

    def sequences(self) -> dict[str, np.ndarray]:
        """Return "seq_lens", int32 [q], and "state_in_0" and so on, [q, ...]; {} if not recurrent."""
        n_S = -(-self.length_S // self._max_seq_len)
        trajectory_Q = np.repeat(np.arange(len(n_S)), n_S)
        before_Q = (np.arange(len(trajectory_Q)) - np.repeat(np.cumsum(n_S) - n_S, n_S)) * self._max_seq_len
        states = self._states(self._state_in, self._trajectories.first_S[trajectory_Q] + before_Q)
        if not states:
            return {}
        length_Q = np.minimum(self._max_seq_len, self.length_S[trajectory_Q] - before_Q).astype(np.int32)
        return {Columns.SEQ_LENS: length_Q, **{f"state_in_{i}": leaf for i, leaf in enumerate(states)}}

    def trajectories(self) -> list[Any]:
        """Return a SampleBatch of column views per trajectory, with "state_out_0" and so on if recurrent."""
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
    """Return the info received with the observation of each step, object [n]."""
    infos = (info for agent_episode in agent_episodes for info in agent_episode.get_infos()[:-1])
    return np.fromiter(infos, object, n)


class BatchBuilder:
    """Builds batches from episode chunks.

    Args:
        policies: Policy id -> policy; the policies may change between batches.
        max_seq_len: Maximum number of steps in a sequence of a recurrent policy.
        callbacks: Callbacks of the worker.
    """

    def __init__(self, policies: Mapping[str, Policy], max_seq_len: int, callbacks: WorkerCallbacks):
        self._policies, self._max_seq_len, self._callbacks = policies, max_seq_len, callbacks
        self._n_unrolls = 0

    def build(self, chunks: list[MultiAgentEpisode], episodes: Mapping[str, EpisodeUnderWay]) -> Any:
        """Build a batch of all steps. Trajectories are ordered by chunk, and within a chunk by appearance of the agent.

        Agents whose last info in a chunk contains "training_enabled": False are left out. The columns of a policy are:

        - "obs", "new_obs", "actions", "infos" (received with "obs"), and the module outputs, [n, ...]
        - "rewards" float32, "terminateds" and "truncateds" bool, [n]
        - "t" (the env step before "new_obs"), "eps_id", "unroll_id" (number of the trajectory) and "agent_index" (order
          of appearance in the episode), int64 [n]
        - if the policy is recurrent, "seq_lens", int32 [q], and "state_in_0" and so on, [q, ...]
        - columns added by `postprocess_trajectory()` of the policy

        Args:
            chunks: Chunks with the steps of the batch.
            episodes: Episode id -> episode of the chunks.

        Returns:
            MultiAgentBatch
        """
        by_policy = self._columns(chunks, episodes, in_training=True)
        at_once_of = {id_: self._at_once(self._policies[id_]) for id_ in by_policy}
        hooked = [id_ for id_, at_once in at_once_of.items() if at_once is None]
        others = self._columns(chunks, episodes, in_training=False) if hooked else {}
        post_batches = self._hooked(chunks, by_policy, others, hooked) if hooked else {}
        batches = {}
        for policy_id, columns in by_policy.items():
            policy, at_once = self._policies[policy_id], at_once_of[policy_id]
            if at_once is None:
                batch = concat_samples(post_batches[policy_id])
            else:
                at_once(policy, columns)
                batch = SampleBatch({**columns.columns, **columns.sequences()})
            batch.num_grad_updates = policy.num_grad_updates
            batches[policy_id] = batch
        return MultiAgentBatch(batches, sum(map(len, chunks)))

    def _columns(
        self, chunks: list[MultiAgentEpisode], episodes: Mapping[str, EpisodeUnderWay], *, in_training: bool
    ) -> dict[str, PolicyColumns]:
        """Return policy id -> columns of the agents that are (or are not) in training, for policies with steps."""
        agent_episodes: defaultdict[str, list[SingleAgentEpisode]] = defaultdict(list)
        chunk_of: defaultdict[str, list[MultiAgentEpisode]] = defaultdict(list)
        for chunk in chunks:
            for agent_id, agent_episode in chunk.agent_episodes.items():
                if len(agent_episode) and _is_in_training(agent_episode) == in_training:
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

    def _at_once(self, policy: Policy) -> Callable[[Any, PolicyColumns], None] | None:
        return None if self._callbacks.has("on_postprocess_trajectory") else _at_once(policy)

    def _hooked(
        self,
        chunks: list[MultiAgentEpisode],
        by_policy: Mapping[str, PolicyColumns],
        others: Mapping[str, PolicyColumns],
        hooked: list[str],
    ) -> dict[str, list[Any]]:
        """Call `postprocess_trajectory()` of the `hooked` policies and return policy id -> results per trajectory.

        Args:
            chunks: The chunks, processed one after the other, agent by agent.
            by_policy: Columns of agents in training.
            others: Columns of agents not in training.
            hooked: Ids of the policies.
        """
        in_chunk: defaultdict[int, PreBatches] = defaultdict(dict)
        for policy_id, columns in [*by_policy.items(), *others.items()]:
            rows = zip(columns.chunks, columns.agent_ids, columns.trajectories(), strict=True)
            for chunk, agent_id, batch in rows:
                in_chunk[id(chunk)][agent_id] = policy_id, self._policies[policy_id], batch
        post_batches: dict[str, list[Any]] = {policy_id: [] for policy_id in hooked}
        for chunk in chunks:
            of_chunk = in_chunk[id(chunk)]
            for agent_id, agent_episode in chunk.agent_episodes.items():
                if agent_id not in of_chunk or not _is_in_training(agent_episode):
                    continue
                policy_id, policy, batch = of_chunk[agent_id]
                if policy_id not in post_batches:
                    continue
                of_others = {other: each for other, each in of_chunk.items() if other != agent_id}
                post_batch = policy.postprocess_trajectory(batch, of_others, chunk)
                self._call_back(policy_id, agent_id, chunk, post_batch, of_chunk)
                for name in [name for name in post_batch if name.startswith("state_out_")]:
                    del post_batch[name]
                post_batches[policy_id].append(post_batch)
        return post_batches

    def _call_back(
        self, policy_id: str, agent_id: Hashable, chunk: MultiAgentEpisode, post_batch: Any, pre_batches: PreBatches
    ) -> None:
        if self._callbacks.has("on_postprocess_trajectory"):
            self._callbacks.call(
                "on_postprocess_trajectory",
                episode=EpisodeV2(chunk, self._callbacks.worker()),
                agent_id=agent_id,
                policy_id=policy_id,
                policies=self._policies,
                postprocessed_batch=post_batch,
                original_batches=pre_batches,
            )


def _is_in_training(agent_episode: SingleAgentEpisode) -> bool:
    info = agent_episode.get_infos(-1)
    flag = info.get("training_enabled", True) if isinstance(info, Mapping) else True
    try:
        return bool(flag)
    except ValueError as error:
        raise BatchError(f"the info of agent {agent_episode.agent_id!r} has training_enabled={flag!r:.99}; expected "
                         f"True or False") from error  # fmt: skip


def _nothing(policy: Any, columns: PolicyColumns) -> None:
    """Do nothing, for policies that do not postprocess trajectories."""


def _ppo(policy: Any, columns: PolicyColumns) -> None:
    policy.postprocess_trajectories(columns.columns, columns.length_S, columns.final_obs(), columns.final_states())


AT_ONCE: dict[Any, Callable[[Any, PolicyColumns], None]] = {
    Policy.postprocess_trajectory: _nothing,
    PPOTorchPolicy.postprocess_trajectory: _ppo,
}
"""`postprocess_trajectory()` of known classes -> an equivalent that processes all trajectories together."""


def _at_once(policy: Policy) -> Callable[[Any, PolicyColumns], None] | None:
    """Return the entry of `AT_ONCE` for the policy, or None if it overrides `postprocess_trajectory()`."""
    if "postprocess_trajectory" in vars(policy):
        return None
    return AT_ONCE.get(type(policy).postprocess_trajectory)
