"""Chunks of episodes as one batch of RLlib's old API stack: columns by policy, postprocessed."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.legacy.batches.sample_batch import MultiAgentBatch, SampleBatch, concat_samples
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.policies.ppo_torch_policy import PPOTorchPolicy
from fastmarl.legacy.sampling.episodes_under_way import EpisodeUnderWay
from fastmarl.legacy.sampling.policy_columns import PolicyColumns

PreBatches = dict[Hashable, tuple[str, Policy, Any]]  # agent id -> (policy id, policy, SampleBatch)


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
