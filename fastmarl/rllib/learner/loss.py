"""PPO's loss of a minibatch without the metrics, which the next minibatch would overwrite.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms", with the operations of RLlib's PPOTorchLearner in the
same order, so that the gradient is bit-identical; operations that only metrics need are left out.
"""

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing


def unheard_loss(learner: Any, module_id: str, batch: dict[str, Any], fwd_out: dict[str, Any]) -> torch.Tensor:
    """Compute the loss that the learner's `compute_loss_for_module()` returns for RLlib's default modules."""
    config, module = learner.config.get_config_for_module(module_id), learner.module[module_id].unwrapped()
    mask = batch.get(Columns.LOSS_MASK)
    n_valid: Any = None if mask is None else torch.sum(mask)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return torch.mean(values) if mask is None else torch.sum(values[mask]) / n_valid

    policy = module.get_train_action_dist_cls().from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
    former = module.get_exploration_action_dist_cls().from_logits(batch[Columns.ACTION_DIST_INPUTS])
    advantages = batch[Postprocessing.ADVANTAGES]
    ratio = torch.exp(policy.logp(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP])
    divergence = mean(former.kl(policy)) if config.use_kl_loss else None
    entropy = policy.entropy()
    clipped = torch.clamp(ratio, 1 - config.clip_param, 1 + config.clip_param)
    gain = torch.min(advantages * ratio, advantages * clipped)
    value_loss: Any = torch.tensor(0.0, device=gain.device)
    if config.use_critic:
        values = module.compute_values(batch, embeddings=fwd_out.get(Columns.EMBEDDINGS))
        error = torch.pow(values - batch[Postprocessing.VALUE_TARGETS], 2.0)
        value_loss = torch.clamp(error, 0, config.vf_clip_param)
    entropy_coeff = learner.entropy_coeff_schedulers_per_module[module_id].get_current_value()
    loss = mean(-gain + config.vf_loss_coeff * value_loss - entropy_coeff * entropy)
    if divergence is not None:
        loss += learner.curr_kl_coeffs_per_module[module_id] * divergence
    return loss
