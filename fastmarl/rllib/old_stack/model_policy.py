"""Computes actions of RLlib torch policies by calling their model directly."""

import functools
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any, Self

import numpy as np
import torch
from ray.rllib.models.torch.torch_modelv2 import TorchModelV2
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.numpy import convert_to_numpy
from torch import Tensor, nn

from fastmarl.rllib.inference.lstm_step import LSTMStep, has_quick_step, quick_layers
from fastmarl.rllib.old_stack.attention_step import AttentionStep, has_attention_step
from fastmarl.rllib.old_stack.plain_policy import (
    EXTRA_OUTPUTS,
    SAMPLERS,
    VF_PREDS,
    problem_of_draws,
    problem_of_methods,
)

QUICK_LAYERS: list[tuple[Any, Callable[[nn.Module], bool]]] = [
    (LSTMStep, has_quick_step),
    (AttentionStep, has_attention_step),
]
"""(class that computes a single step of a layer, function that tests whether a layer is supported)."""
TRAINING = itemgetter("training")


class ModelPolicy:
    """Computes actions and other outputs of a policy.

    Args:
        policy: A policy for which `problem_of_calls()` is None.
        former: Previous ModelPolicy of the policy, whose `quick_layers` are reused.

    Attributes:
        quick_layers: Layer of the model -> object that computes a single step of it; see `quick_layers()`.
    """

    def __init__(self, policy: Any, former: Self | None = None):
        self._policy = policy
        parts = [*policy.model.modules()]
        has_torchs_eval = "eval" not in vars(policy.model) and all(map(_has_torchs_eval, parts))
        self._parts = [vars(part) for part in parts] if has_torchs_eval else []
        self._children = [part["_modules"] for part in self._parts]
        self._all_children = self._current_children()
        known = {} if former is None else former.quick_layers
        self.quick_layers: dict[Any, Any] = {
            part: known.get(part) or kind(part) for part in parts for kind, fits in QUICK_LAYERS if fits(part)
        }
        has_known_outputs = type(policy).extra_action_out in EXTRA_OUTPUTS and "extra_action_out" not in vars(policy)
        draws = has_known_outputs and problem_of_draws(policy) is None
        self._sampler = SAMPLERS[policy.dist_class]() if draws else None
        self._has_values = draws and EXTRA_OUTPUTS[type(policy).extra_action_out]

    def act(self, batch: SampleBatch) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return actions, states, and a dict of column -> other policy output."""
        policy, n = self._policy, len(batch[SampleBatch.OBS])
        model = policy.model
        if not self._is_in_eval_mode():
            model.eval()
        with torch.no_grad():
            inputs = policy._lazy_tensor_dict(batch)
            inputs.set_training(True)
            states = [inputs[name] for name in inputs.keys() if "state_in" in name[:8]]  # noqa: SIM118 - not a dict's
            lengths = torch.ones(len(states[0]), dtype=torch.long, device=states[0].device) if states else None
            if self._sampler is None:
                policy.exploration.before_compute_actions(
                    explore=policy.config["explore"], timestep=policy.global_timestep
                )
            with quick_layers(self.quick_layers):
                logits, states_out = model(inputs, states, lengths)
            drawn = self._drawn(logits)
            if drawn is None:
                actions, extra = self._chosen(logits, inputs, states)
            else:
                actions, logp = drawn
                policy.exploration.last_timestep = policy.global_timestep
                extra = {VF_PREDS: model.value_function()} if self._has_values else {}
                extra = _with_logp(extra, logits, torch.from_numpy(logp))
            of_states = [_to_numpy(state) for state in states_out]
            of_extra = {name: _to_numpy(values) for name, values in extra.items()}
        policy.global_timestep += n
        return _to_numpy(actions), of_states, of_extra

    def _is_in_eval_mode(self) -> bool:
        """Return True if calling `model.eval()` would change nothing."""
        if not self._parts or any(map(TRAINING, self._parts)):
            return False
        return self._current_children() == self._all_children

    def _current_children(self) -> list[nn.Module | None]:
        return [*chain.from_iterable([children.values() for children in self._children])]

    def _drawn(self, logits: Any) -> tuple[np.ndarray, np.ndarray] | None:
        """Sample actions and return (actions, log-probabilities), or None if RLlib must sample."""
        if self._sampler is None or not self._policy.config["explore"]:
            return None
        if type(logits) is not Tensor or logits.dtype != torch.float32 or not (logits.dim() == 2 and len(logits)):
            return None
        logits = logits.detach().contiguous()
        actions, logp = self._sampler.draw(logits, logits.numpy())
        return (actions, logp) if np.isfinite(logp).all() else None

    def _chosen(self, logits: Any, inputs: SampleBatch, states: list[Any]) -> tuple[Any, dict[str, Any]]:
        """Return actions and other policy outputs, using RLlib's distribution and exploration."""
        policy = self._policy
        distribution = policy.dist_class(logits, policy.model)
        actions, logp = policy.exploration.get_exploration_action(
            action_distribution=distribution, timestep=policy.global_timestep, explore=policy.config["explore"]
        )
        extra = policy.extra_action_out(inputs, states, policy.model, distribution)
        return actions, _with_logp(extra, logits, logp)


def _has_torchs_eval(part: nn.Module) -> bool:
    """Return True if the module's `eval()` only sets a flag on it and its children."""
    kind = type(part)
    is_torchs = kind.train is nn.Module.train and kind.eval is nn.Module.eval and "train" not in vars(part)
    return is_torchs and not isinstance(part, torch.jit.ScriptModule)


def problem_of_calls(policy: Any) -> str | None:
    """Return why the policy itself must be called for actions, or None if `ModelPolicy` is equivalent."""
    if problem := problem_of_methods(policy):
        return problem
    if not isinstance(policy.model, TorchModelV2) or not isinstance(policy.model, nn.Module):
        return f"its model is a {type(policy.model).__name__}"
    if isinstance(policy.dist_class, functools.partial) or not isinstance(policy.dist_class, type):
        return "its action distribution is not a class"
    return None


def _with_logp(extra: dict[str, Any], logits: Any, logp: Any) -> dict[str, Any]:
    """Add distribution inputs and action probabilities to the extra outputs, as RLlib does."""
    if logits is not None:
        extra[SampleBatch.ACTION_DIST_INPUTS] = logits
    if logp is not None:
        extra[SampleBatch.ACTION_PROB] = torch.exp(logp.float())
        extra[SampleBatch.ACTION_LOGP] = logp
    return extra


def _to_numpy(values: Any) -> Any:
    if type(values) is Tensor and values.dtype == torch.float32 and values.is_cpu and values.dim():
        return values.detach().numpy()
    if type(values) is np.ndarray and values.dtype in (np.int32, np.float32):
        return values
    return convert_to_numpy(values)
