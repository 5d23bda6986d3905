"""RLlib's postprocessing of one agent's trajectory: generalized advantage estimation."""

import math
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import ppo_torch_policy
from ray.rllib.evaluation import postprocessing
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.numpy import convert_to_numpy

from fastmarl.core.kernels.returns import discounted_sums

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
    """Return true if `add_gae()` equals the policy's postprocessing."""
    config = policy.config
    return (
        type(policy).postprocess_trajectory is PPO_METHOD
        and "postprocess_trajectory" not in vars(policy)
        and bool(config["use_gae"] and config.get("use_critic", True))
        and all(getattr(module, name) is function for (module, name), function in FUNCTIONS.items())
    )


def add_gae(policy: Any, batch: SampleBatch) -> SampleBatch:
    """Add advantages and value targets to a batch, by RLlib's operations and in its dtypes.

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
