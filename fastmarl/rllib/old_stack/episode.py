"""An episode that stores agent steps in fastmarl trajectories where the policies allow it."""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import ppo_torch_policy
from ray.rllib.evaluation import postprocessing
from ray.rllib.evaluation.collectors.simple_list_collector import _PolicyCollector
from ray.rllib.evaluation.episode_v2 import EpisodeV2
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.evaluation.rollout_worker import get_global_worker
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.numpy import convert_to_numpy

from fastmarl.core.kernels.returns import discounted_sums
from fastmarl.rllib.inference.lstm_step import quick_layers
from fastmarl.rllib.old_stack.trajectory import Trajectory

NewTrajectory = Callable[["OldStackEpisode", Hashable], Trajectory | None]
QuickLayersOf = Callable[[Hashable], Mapping[Any, Any]]


class OldStackEpisode(EpisodeV2):
    """RLlib's EpisodeV2 with fastmarl trajectories.

    Args:
        args, kwargs: Arguments of the RLlib class.
        new_trajectory: (episode, agent id) -> trajectory for the agent steps, or None to use the RLlib collector.
        quick_layers_of: Policy id -> replaced layers of its model; see `quick_layers()`.
    """

    active_agent_steps: int
    active_env_steps: int

    def __init__(self, *args: Any, new_trajectory: NewTrajectory, quick_layers_of: QuickLayersOf, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._new_trajectory, self._quick_layers_of = new_trajectory, quick_layers_of

    def add_init_obs(self, *, agent_id: Hashable, init_obs: Any, init_infos: Any, t: int = -1) -> None:
        """Add the first observation of an agent, like the RLlib method."""
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
        """Trajectories of all agents whose steps are stored by fastmarl."""
        return [one for one in self._agent_collectors.values() if type(one) is Trajectory]

    def postprocess_episode(self, batch_builder: Any, is_done: bool = False, check_dones: bool = False) -> None:
        """Build and postprocess batches of agent steps, and add them to the policy batches in `batch_builder`."""
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


PPO_METHOD = ppo_torch_policy.PPOTorchPolicy.postprocess_trajectory
FUNCTIONS = {  # (module, name) -> the original, read before user code can replace it
    (module, name): getattr(module, name)
    for module, names in (
        (ppo_torch_policy, ("compute_gae_for_sample_batch",)),
        (postprocessing, ("compute_advantages", "compute_bootstrap_value", "discount_cumsum")),
    )
    for name in names
}


def is_gae(policy: Any) -> bool:
    """Return True if `add_gae()` is equivalent to the postprocessing of the policy."""
    config = policy.config
    return (
        type(policy).postprocess_trajectory is PPO_METHOD
        and "postprocess_trajectory" not in vars(policy)
        and bool(config["use_gae"] and config.get("use_critic", True))
        and all(getattr(module, name) is function for (module, name), function in FUNCTIONS.items())
    )


def add_gae(policy: Any, batch: SampleBatch) -> SampleBatch:
    """Add advantages and value targets to a batch, with RLlib's operations and dtypes.

    Schulman et al. (2016), "High-Dimensional Continuous Control Using Generalized Advantage Estimation".
    """
    values = np.array(batch[SampleBatch.VF_PREDS])
    if batch[SampleBatch.TERMINATEDS][-1]:
        last_value = 0.0
    else:
        with torch.no_grad():
            last_value = policy._value(**batch.get_single_step_input_dict(policy.view_requirements, index="last"))
    ahead = np.concatenate([values[1:], np.array([convert_to_numpy(last_value)], np.float32)])
    batch[SampleBatch.VALUES_BOOTSTRAPPED] = ahead
    gamma, rewards = policy.config["gamma"], np.array(batch[SampleBatch.REWARDS])
    expected = np.concatenate([values, ahead[-1:]])
    deltas = rewards + gamma * expected[1:] - expected[:-1]
    advantages = np.empty(len(deltas), np.float64)
    discount = gamma * policy.config["lambda"]
    discounted_sums(deltas, discount, advantages)
    if not math.isfinite(advantages[0]):  # the bits of a NaN depend on the order of factors
        advantages = postprocessing.discount_cumsum(deltas, discount)
    batch[Postprocessing.ADVANTAGES] = advantages.astype(np.float32)
    batch[Postprocessing.VALUE_TARGETS] = (advantages + values).astype(np.float32)
    return batch
