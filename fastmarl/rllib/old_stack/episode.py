"""An episode that stores its agents' steps in fastmarl's trajectories, if their policies allow it."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

from ray.rllib.evaluation.collectors.simple_list_collector import _PolicyCollector
from ray.rllib.evaluation.episode_v2 import EpisodeV2
from ray.rllib.evaluation.rollout_worker import get_global_worker
from ray.rllib.policy.sample_batch import SampleBatch

from fastmarl.rllib.inference.lstm_step import quick_layers
from fastmarl.rllib.old_stack.postprocessing import add_gae, is_gae
from fastmarl.rllib.old_stack.trajectory import Trajectory

NewTrajectory = Callable[["OldStackEpisode", Hashable], Trajectory | None]
QuickLayersOf = Callable[[Hashable], Mapping[Any, Any]]


class OldStackEpisode(EpisodeV2):
    """RLlib's class with fastmarl's trajectories.

    Args:
        args, kwargs: Arguments of RLlib's class.
        new_trajectory: (episode, agent id) -> trajectory for the agent's steps; None: use RLlib's collector.
        quick_layers_of: Policy id -> quick layers of its model, see `quick_layers()`.
    """

    active_agent_steps: int
    active_env_steps: int

    def __init__(self, *args: Any, new_trajectory: NewTrajectory, quick_layers_of: QuickLayersOf, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._new_trajectory, self._quick_layers_of = new_trajectory, quick_layers_of

    def add_init_obs(self, *, agent_id: Hashable, init_obs: Any, init_infos: Any, t: int = -1) -> None:
        """Add an agent's first observation, as RLlib's method does."""
        trajectory = self._new_trajectory(self, agent_id)
        if trajectory is None:
            super().add_init_obs(agent_id=agent_id, init_obs=init_obs, init_infos=init_infos, t=t)
            return
        assert agent_id not in self._agent_collectors
        trajectory.begin(init_obs, init_infos or {}, t)
        self._agent_collectors[agent_id] = trajectory
        self._has_init_obs[agent_id] = True

    @property
    def trajectories(self) -> list[Trajectory]:
        """Trajectories of all agents whose steps fastmarl stores."""
        return [one for one in self._agent_collectors.values() if type(one) is Trajectory]

    def postprocess_episode(self, batch_builder: Any, is_done: bool = False, check_dones: bool = False) -> None:
        """Build and postprocess batches of the agents' steps, and add them to their policies' in `batch_builder`."""
        built: dict[Hashable, tuple[Any, Any, SampleBatch]] = {}
        for agent_id, collector in self._agent_collectors.items():
            if collector.agent_steps:
                policy_id = self.policy_for(agent_id)
                policy = self.policy_map[policy_id]
                built[agent_id] = policy_id, policy, collector.build_for_training(policy.view_requirements)
        for agent_id, (policy_id, policy, batch) in built.items():
            if is_done and check_dones and not batch.is_terminated_or_truncated():
                raise ValueError(
                    f"Episode {self.episode_id} terminated for all agents, but we still don't have a last observation "
                    f"for agent {agent_id} (policy {policy_id}). Please ensure that you include the last observations "
                    "of all live agents when setting done[__all__] to True."
                )
            if not self._last_infos.get(agent_id, {}).get("training_enabled", True):
                continue
            if not batch.is_single_trajectory():
                raise ValueError(
                    "Batches sent to postprocessing must only contain steps from a single trajectory.", batch
                )
            done = self._postprocessed(agent_id, policy_id, batch, built)
            self.callbacks.on_postprocess_trajectory(
                worker=get_global_worker(),
                episode=self,
                agent_id=agent_id,
                policy_id=policy_id,
                policies=self.policy_map,
                postprocessed_batch=done,
                original_batches=built,
            )
            if policy_id not in batch_builder.policy_collectors:
                batch_builder.policy_collectors[policy_id] = _PolicyCollector(policy)
            collector = batch_builder.policy_collectors[policy_id]
            collector.add_postprocessed_batch_for_training(done, policy.view_requirements)
        batch_builder.agent_steps += self.active_agent_steps
        batch_builder.env_steps += self.active_env_steps
        self.active_agent_steps = 0
        self.active_env_steps = 0

    def _postprocessed(self, agent_id: Hashable, policy_id: Hashable, batch: SampleBatch, built: dict) -> SampleBatch:
        policy = built[agent_id][1]
        if getattr(policy, "exploration", None) is not None:
            policy.exploration.postprocess_trajectory(policy, batch, policy.get_session())
        batch.set_get_interceptor(None)
        if is_gae(policy) and batch[SampleBatch.VF_PREDS].ndim == 1:
            with quick_layers(self._quick_layers_of(policy_id)):
                return add_gae(policy, batch)
        others = {other_id: other for other_id, other in built.items() if other_id != agent_id}
        return policy.postprocess_trajectory(batch, others, self)
