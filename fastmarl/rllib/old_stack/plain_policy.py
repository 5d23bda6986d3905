"""Computes actions of RLlib policies with fully connected networks: same operations, fewer surrounding calls."""

from typing import Any

import numpy as np
import torch
from ray.rllib.models.torch.fcnet import FullyConnectedNetwork
from ray.rllib.models.torch.misc import SlimFC
from ray.rllib.models.torch.torch_action_dist import TorchCategorical, TorchDiagGaussian
from ray.rllib.models.torch.torch_modelv2 import TorchModelV2
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.torch_mixins import ValueNetworkMixin
from ray.rllib.policy.torch_policy_v2 import TorchPolicyV2
from ray.rllib.utils.exploration.stochastic_sampling import StochasticSampling
from ray.rllib.utils.numpy import convert_to_numpy
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from fastmarl.core.nets.dense_layers import HOOKS, is_watched
from fastmarl.rllib.inference.draws import equals_torch
from fastmarl.rllib.inference.draws_cpu import CategoricalRows, GaussianRows, RowSampler
from fastmarl.rllib.inference.layers import Function, chain, layer_steps
from fastmarl.rllib.inference.plain_modules import KNOWN_LAYERS, is_plain_part

VF_PREDS = SampleBatch.VF_PREDS
POLICY_METHODS = (
    *("compute_actions_from_input_dict", "_compute_action_helper", "_lazy_tensor_dict"),
    *("action_sampler_fn", "action_distribution_fn"),
)
EXTRA_OUTPUTS = {ValueNetworkMixin.extra_action_out: True, TorchPolicyV2.extra_action_out: False}
"""Known `extra_action_out()` methods -> True if they return value predictions."""
SAMPLERS: dict[type, type[RowSampler]] = {TorchCategorical: CategoricalRows, TorchDiagGaussian: GaussianRows}
CALLED = (
    *("forward", "__call__", "value_function", "before_compute_actions", "get_exploration_action"),
    *("sample", "logp"),
)
OWNERS = (TorchPolicyV2, FullyConnectedNetwork, TorchModelV2, SlimFC, StochasticSampling, *SAMPLERS)
METHODS = {  # the originals, read before user code can replace them
    (owner, name): getattr(owner, name)
    for owner in OWNERS
    for name in (*POLICY_METHODS, *CALLED)
    if any(name in vars(base) for base in owner.__mro__[:-1])
}


class PlainPolicy:
    """Computes actions and other outputs of a policy.

    Args:
        policy: A policy for which `problem_of()` is None.
    """

    def __init__(self, policy: Any):
        self._policy = policy
        model = policy.model
        self._to_features = chain(_steps_of(model._hidden_layers))
        self._to_logits = None if model._logits is None else chain(_steps_of(model._logits))
        self._has_values = EXTRA_OUTPUTS[type(policy).extra_action_out]
        separate, last = model._value_branch_separate, [*_steps_of(model._value_branch)]
        self._to_value = chain(last if separate is None else [*_steps_of(separate), *last])
        self._sampler = SAMPLERS[policy.dist_class]()

    def act(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """Return a dict of column -> policy output, including the actions, in RLlib order.

        Args:
            obs: [n, ...], of any numeric dtype.
        """
        policy = self._policy
        model, timestep = policy.model, policy.global_timestep
        if model.training:
            model.eval()
        with torch.no_grad():
            flat = torch.from_numpy(obs).to(policy.device).float().reshape(len(obs), -1)
            features = self._to_features(flat)
            logits = features if self._to_logits is None else self._to_logits(features)
            vars(model).update(_last_flat_in=flat, _features=features, _last_output=logits)
            policy.exploration.last_timestep = timestep
            actions, logp = self._draw(logits)
            outputs = {SampleBatch.ACTIONS: actions}
            if self._has_values:
                values = self._to_value(features if model._value_branch_separate is None else flat)
                outputs[VF_PREDS] = values.squeeze(1).numpy()
            outputs[SampleBatch.ACTION_DIST_INPUTS] = logits.numpy()
            outputs[SampleBatch.ACTION_PROB] = torch.exp(logp.float()).numpy()
            outputs[SampleBatch.ACTION_LOGP] = logp.numpy()
        policy.global_timestep += len(obs)
        return outputs

    def _draw(self, logits: Tensor) -> tuple[np.ndarray, Tensor]:
        """Sample actions and return (actions, log-probabilities)."""
        policy = self._policy
        if policy.config["explore"]:
            actions, logp = self._sampler.draw(logits, logits.numpy())
            if np.isfinite(logp).all():
                return actions, torch.from_numpy(logp)
        # RLlib raises errors about NaN and chooses the most likely actions.
        chosen, logp_of_chosen = policy.exploration.get_exploration_action(
            action_distribution=policy.dist_class(logits, policy.model),
            timestep=policy.global_timestep,
            explore=policy.config["explore"],
        )
        return convert_to_numpy(chosen), logp_of_chosen


def problem_of(policy: Any) -> str | None:
    """Return why `PlainPolicy` cannot compute the actions, or None if it is equivalent to RLlib."""
    kind = type(policy)
    if problem := problem_of_methods(policy):
        return problem
    if "extra_action_out" in vars(policy) or kind.extra_action_out not in EXTRA_OUTPUTS:
        return f"{kind.__name__} overrides extra_action_out()"
    return problem_of_draws(policy) or _problem_of_model(policy.model, kind)


def problem_of_methods(policy: Any) -> str | None:
    """Return why the policy itself must be called for actions, or None if its methods are from RLlib."""
    kind = type(policy)
    if not isinstance(policy, TorchPolicyV2):
        return f"{kind.__name__} is not a TorchPolicyV2"
    for name in POLICY_METHODS:
        if name in vars(policy) or getattr(kind, name) is not METHODS[TorchPolicyV2, name]:
            return f"{kind.__name__} overrides {name}()"
    return None


def problem_of_draws(policy: Any) -> str | None:
    """Return why RLlib exploration must sample the actions, or None if `SAMPLERS` draw the same samples."""
    if changed := [f"{owner.__name__}.{name}" for (owner, name), method in METHODS.items()
                   if getattr(owner, name) is not method]:  # fmt: skip
        return f"{changed[0]}() has been replaced"
    exploration = policy.exploration
    if type(exploration) is not StochasticSampling or callable(vars(exploration).get("get_exploration_action")):
        return f"its exploration is a {type(exploration).__name__}"
    if exploration.random_timesteps:
        return "its exploration starts with random actions"
    if policy.dist_class not in SAMPLERS:
        return f"its action distribution is a {getattr(policy.dist_class, '__name__', policy.dist_class)}"
    if policy.device.type != "cpu" or not equals_torch(policy.device):
        return f"its device is {policy.device}"
    return None


def _problem_of_model(model: Any, policy_class: type) -> str | None:
    if type(model) is not FullyConnectedNetwork:
        return f"its model is a {type(model).__name__}"
    if model.free_log_std:
        return "its model uses free_log_std"
    if any(getattr(nn_module, f"_global{hooks}") for hooks in HOOKS):
        return "torch has global hooks"
    if {"forward", "value_function", "__call__", "context"} & vars(model).keys():
        return "its model has replaced methods"
    for part in model.modules():
        if type(part) in (FullyConnectedNetwork, SlimFC, nn.Sequential):
            if is_watched(part):
                return f"a {type(part).__name__} in its model has hooks or is compiled"
        elif type(part) not in KNOWN_LAYERS or not is_plain_part(part):
            return f"its model contains an unsupported {type(part).__name__}"
    return None


def _steps_of(layers: nn.Module) -> list[Function]:
    """Return the functions of a SlimFC or of a sequence of SlimFCs."""
    if isinstance(layers, SlimFC):
        return [*layer_steps(layers._model)]
    return [step for layer in layers.children() for step in _steps_of(layer)]
