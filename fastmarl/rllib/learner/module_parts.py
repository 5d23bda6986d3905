"""Finds the layers of default RLlib modules, if their derivatives are known."""

from typing import Any, NamedTuple

import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical, TorchDiagGaussian
from ray.rllib.core.models.torch.encoder import TorchActorCriticEncoder, TorchMLPEncoder
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead, TorchMLPHead
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn

from fastmarl.core.nets.dense_layers import NotDenseError, parts_of
from fastmarl.rllib.inference.plain_modules import is_plain_part, plain_actor
from fastmarl.rllib.learner.dense import is_dense

DISTRIBUTIONS = (TorchCategorical, TorchDiagGaussian)
OWN_METHODS = {  # methods that must not be replaced on the instance
    *("forward_train", "_forward_train", "compute_values", "get_train_action_dist_cls"),
    *("get_exploration_action_dist_cls", "unwrapped"),
}
METHODS = {  # the originals, read before user code can replace them
    (kind, name): getattr(kind, name)
    for kind, names in (
        (DefaultPPOTorchRLModule, ("forward_train", "_forward_train", "compute_values")),
        (TorchRLModule, ("forward_train", "unwrapped")),
        *((kind, ("from_logits", "logp", "kl", "entropy", "_get_torch_distribution")) for kind in DISTRIBUTIONS),
    )
    for name in names
}


class PPOModuleParts(NamedTuple):
    """The layers of a module. `trunk` and `value_trunk` are the same object if policy and values share layers."""

    trunk: nn.Sequential
    value_trunk: nn.Sequential
    policy: Any
    value: nn.Sequential
    is_discrete: bool

    @property
    def n_obs(self) -> int:
        """Number of floats in an observation."""
        first: Any = self.trunk[0]
        return int(first.in_features)

    @property
    def n_logits(self) -> int:
        """Number of parameters of the action distribution."""
        width = _width(self.policy.net.mlp)
        return 2 * width if type(self.policy) is TorchFreeLogStdMLPHead else width

    @property
    def bound(self) -> float | None:
        """Bound of the log standard deviations, or None."""
        if self.is_discrete or not self.policy.clip_log_std:
            return None
        return float(self.policy.log_std_clip_param_const)


def _width(sequence: nn.Sequential) -> int:
    """Return the number of outputs of a sequence for which `is_dense()` returns True."""
    return [layer.out_features for layer in sequence if type(layer) is nn.Linear][-1]


def parts_of_module(module: Any) -> PPOModuleParts | None:
    """Return the layers of a module, or None if it might not compute exactly these."""
    if type(module) is not DefaultPPOTorchRLModule or vars(module).keys() & OWN_METHODS or module.inference_only:
        return None
    if any(getattr(owner, name) != method for (owner, name), method in METHODS.items()):
        return None
    try:
        encoder, head = plain_actor(module)
    except NotDenseError:
        return None
    kind = module.get_train_action_dist_cls()
    if type(encoder) is not TorchMLPEncoder or type(module.encoder) is not TorchActorCriticEncoder:
        return None
    if kind not in DISTRIBUTIONS or module.get_exploration_action_dist_cls() is not kind:
        return None
    critic: Any = encoder if module.encoder.config.shared else module.encoder.critic_encoder
    if type(critic) is not TorchMLPEncoder or type(module.vf) is not TorchMLPHead or module.vf.clip_log_std:
        return None
    if not all(map(is_plain_part, parts_of(critic, module.vf))):
        return None
    parts = PPOModuleParts(encoder.net.mlp, critic.net.mlp, head, module.vf.net.mlp, kind is TorchCategorical)
    return parts if _fits(parts, module) else None


def _fits(parts: PPOModuleParts, module: Any) -> bool:
    sequences = {id(each): each for each in (parts.trunk, parts.value_trunk, parts.policy.net.mlp, parts.value)}
    if type(parts.policy.net.mlp[-1]) is not nn.Linear or not all(map(is_dense, sequences.values())):
        return False
    if _width(parts.value) != 1:  # RLlib squeezes one column
        return False
    if parts.is_discrete and (type(parts.policy) is not TorchMLPHead or parts.policy.clip_log_std):
        return False
    known: list[Tensor] = [weight for each in sequences.values() for weight in each.parameters()]
    if type(parts.policy) is TorchFreeLogStdMLPHead:
        known.append(parts.policy.log_std)
    parameters = list(module.parameters())
    return (
        sorted(map(id, parameters)) == sorted(map(id, known))  # no layers share a parameter
        and all(map(_is_plain_parameter, parameters))
        and (parts.is_discrete or parts.n_logits % 2 == 0)
    )


def _is_plain_parameter(parameter: Any) -> bool:
    return (
        type(parameter) is nn.Parameter
        and parameter.requires_grad
        and parameter.is_cpu
        and parameter.dtype == torch.float32
        and parameter.is_contiguous()
        and not parameter._backward_hooks
        and not getattr(parameter, "_post_accumulate_grad_hooks", None)
    )
