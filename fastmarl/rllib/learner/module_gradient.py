"""Computes the outputs and parameter gradients of default RLlib modules without autograd."""

from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor, nn

from fastmarl.core.native._ppo_exact import Derivatives
from fastmarl.core.nets.dense_layers import DenseLayers
from fastmarl.learning.dense_nets import DenseNet, gradient_of, packed_rows
from fastmarl.rllib.learner.dense import DenseStack, Gradients, layers_of, memory
from fastmarl.rllib.learner.minibatches import MinibatchRows, RowNumbers
from fastmarl.rllib.learner.module_parts import PPOModuleParts

ALIGNED = 16  # floats; alignment of torch tensors, which affects the last bits of matrix products


def gradient_memory(module: nn.Module) -> tuple[Tensor, Gradients]:
    """Allocate aligned memory for all gradients; return it (gaps are zero) and a view of it per parameter."""
    parameters = list(module.parameters())
    sizes = [-(-each.numel() // ALIGNED) * ALIGNED for each in parameters]
    flat = memory(sum(sizes)).zero_()
    pieces = zip(parameters, flat.split(sizes), strict=True)
    return flat, {each: piece[: each.numel()].view(each.shape) for each, piece in pieces}


class ModuleGradient:
    """Forward and backward pass of a module for minibatches of `n_rows` rows, with reused memory.

    Must be called without autograd.

    Args:
        module: A default PPO module of RLlib.
        parts: Parts of the module, from `parts_of_module()`.
        n_rows: Number of rows in a minibatch.

    Attributes:
        logits: Distribution inputs of the policy [n_rows, n_logits] in the last `forward()`.
        values: Values [n_rows, 1] in the last `forward()`.
        d_logits, d_values: Derivatives of the loss with respect to these, read by `backward()`.
        flat, gradients: See `gradient_memory()`.
    """

    def __init__(self, module: nn.Module, parts: PPOModuleParts, n_rows: int):
        self.flat, self.gradients = gradient_memory(module)
        self.logits = memory(n_rows, parts.n_logits)
        self.d_logits = torch.empty_like(self.logits)
        is_free = type(parts.policy) is TorchFreeLogStdMLPHead
        n_means = parts.n_logits // 2 if is_free else parts.n_logits
        self._log_std = parts.policy.log_std if is_free else None
        self._d_outputs = self.d_logits[:, :n_means]
        self._scales, self._d_scales = self.logits[:, n_means:], self.d_logits[:, n_means:]

        def stack(layers: nn.Sequential, *, is_first: bool, outputs: Tensor | None = None) -> DenseStack:
            return DenseStack(layers_of(layers, n_rows, self.gradients, outputs), is_first)

        self._trunk = self._value_trunk = stack(parts.trunk, is_first=True)
        if parts.value_trunk is not parts.trunk:
            self._value_trunk = stack(parts.value_trunk, is_first=True)
        self._head = stack(parts.policy.net.mlp, is_first=False, outputs=self.logits[:, :n_means])
        self._value_head = stack(parts.value, is_first=False)
        self.values = self._value_head.outputs
        self.d_values = torch.empty_like(self.values)

    def forward(self, obs: Tensor) -> None:
        """Compute `logits` and `values` of observations [n_rows, n_obs]."""
        features = self._trunk.forward(obs)
        self._head.forward(features)
        if self._log_std is not None:
            self._scales.copy_(self._log_std.detach())
        is_shared = self._value_trunk is self._trunk
        self._value_head.forward(features if is_shared else self._value_trunk.forward(obs))

    def backward(self) -> None:
        """Compute `gradients` from `d_logits` and `d_values`, for the last `forward()`."""
        if self._log_std is not None:
            torch.sum(self._d_scales, 0, out=self.gradients[self._log_std])
        by_features = self._head.backward(self._d_outputs)
        by_value_features = self._value_head.backward(self.d_values)
        if self._value_trunk is self._trunk:
            by_features.add_(by_value_features)
        else:
            self._value_trunk.backward(by_value_features)
        self._trunk.backward(by_features)


class ExactGradient:
    """Computes gradients, bit-identical to autograd, for minibatches of `n_rows` rows.

    Args:
        module: A module with discrete actions.
        parts: Parts of the module, from `parts_of_module()`.
        n_rows: Number of rows in a minibatch.
        coefficients: Coefficients of the loss; see Derivatives.

    Attributes:
        flat, gradients: See `gradient_memory()`; `compute()` overwrites them.
    """

    def __init__(self, module: nn.Module, parts: PPOModuleParts, n_rows: int, coefficients: dict[str, Any]):
        self._net = ModuleGradient(module, parts, n_rows)
        self.flat, self.gradients = self._net.flat, self._net.gradients
        self._loss = CategoricalLoss(n_rows, parts.n_logits, coefficients)

    def compute(self, minibatch: MinibatchRows) -> None:
        """Compute the gradients of a minibatch. Must be called without autograd."""
        net = self._net
        net.forward(minibatch[Columns.OBS])
        self._loss.derive(minibatch, net.logits, net.values, net.d_logits, net.d_values)
        net.backward()


class RoundedGradient:
    """Computes gradients, equal to autograd up to rounding, for any minibatches, using `fastmarl.learning`.

    Args:
        module: A default PPO module of RLlib.
        parts: Parts of the module, from `parts_of_module()`.
        batch: The train batch, for which `are_known()` returns True.
        coefficients: Loss coefficients: `clip_param`, `vf_clip_param`, `vf_loss_coeff`, `entropy_coeff` and `kl_coeff`.

    Attributes:
        flat, gradients: See `gradient_memory()`; `compute()` overwrites them.

    Raises:
        NotDenseError: If compiled code does not support the module.
    """

    def __init__(
        self, module: nn.Module, parts: PPOModuleParts, batch: dict[str, Tensor], coefficients: dict[str, Any]
    ):
        self.flat, self.gradients = gradient_memory(module)
        has_former = coefficients["kl_coeff"] is not None
        self._net = gradient_of(_dense_net(parts), self.gradients, has_former=has_former)
        self._obs = batch[Columns.OBS].contiguous().numpy()
        self._rows = packed_rows(
            logp=batch[Columns.ACTION_LOGP],
            advantages=batch[Postprocessing.ADVANTAGES],
            targets=batch[Postprocessing.VALUE_TARGETS],
            actions=batch[Columns.ACTIONS],
            loss_mask=batch.get(Columns.LOSS_MASK),
            former_logits=batch[Columns.ACTION_DIST_INPUTS] if has_former else None,
        ).numpy()
        self._options: dict[str, Any] = {
            "clip": coefficients["clip_param"],
            "value_coeff": coefficients["vf_loss_coeff"],
            "value_clip": coefficients["vf_clip_param"],
            "entropy_coeff": coefficients["entropy_coeff"],
            "kl_coeff": coefficients["kl_coeff"] or 0.0,
        }

    def compute(self, minibatch: RowNumbers) -> None:
        """Compute the gradients of a minibatch."""
        self._net.compute(self._obs, self._rows, minibatch.numbers.numpy(), **self._options)


def _dense_net(parts: PPOModuleParts) -> DenseNet:
    layers = DenseLayers(parts.n_obs)
    features = layers.add([*parts.trunk])
    logits = layers.add([*parts.policy.net.mlp], features)
    value_features = features if parts.value_trunk is parts.trunk else layers.add([*parts.value_trunk])
    values = layers.add([*parts.value], value_features)
    return DenseNet(
        parts.n_obs,
        layers.layers,
        logits,
        values,
        sizes=[parts.n_logits] if parts.is_discrete else None,
        log_std=parts.policy.log_std if type(parts.policy) is TorchFreeLogStdMLPHead else None,
        bound=parts.bound,
    )


class CategoricalLoss:
    """Computes the derivatives of the PPO loss with the same operations as autograd, for minibatches of `n_rows` rows.

    Args:
        n_rows: Number of rows in a minibatch.
        n_logits: Number of logits in a row.
        coefficients: Coefficients of the loss; see Derivatives.
    """

    def __init__(self, n_rows: int, n_logits: int, coefficients: dict[str, Any]):
        self._derivatives = Derivatives(**coefficients)
        self._has_kl = coefficients["kl_coeff"] is not None
        self._by_probabilities, self._by_normalized, self._negative = (memory(n_rows, n_logits) for _ in range(3))
        self._by_logarithms = np.empty((n_rows, n_logits), np.float32)
        self._by_logp = np.empty(n_rows, np.float32)

    def derive(
        self, minibatch: MinibatchRows, logits: Tensor, values: Tensor, d_logits: Tensor, d_values: Tensor
    ) -> None:
        """Write the derivatives of the loss with respect to logits and values. Must be called without autograd.

        Args:
            minibatch: Columns for which `are_known()` returns True, with a loss mask.
            logits: Logits of the module, float32 [n_rows, n_logits].
            values: Values of the module, float32 [n_rows, 1].
            d_logits: Output array for the derivatives with respect to the logits, of the same shape.
            d_values: Output array for the derivatives with respect to the values, of the same shape.
        """
        counts, actions = minibatch[Columns.LOSS_MASK].numpy().view(np.uint8), minibatch[Columns.ACTIONS].long()
        logarithms = _normalized(logits)
        probabilities = former = torch.softmax(logarithms, -1)
        if self._has_kl:
            former = torch.softmax(_normalized(minibatch[Columns.ACTION_DIST_INPUTS]), -1)
        logp = logarithms.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        self._derivatives.by_ratios_and_probabilities(
            logarithms=logarithms.numpy(),
            probabilities=probabilities.numpy(),
            ratios=torch.exp(logp - minibatch[Columns.ACTION_LOGP]).numpy(),
            values=values.numpy(),
            advantages=minibatch[Postprocessing.ADVANTAGES].numpy(),
            targets=minibatch[Postprocessing.VALUE_TARGETS].numpy(),
            counts=counts,
            by_probabilities=self._by_probabilities.numpy(),
            by_logarithms=self._by_logarithms,
            by_logp=self._by_logp,
            by_values=d_values.numpy(),
        )
        by_softmax = torch._softmax_backward_data(self._by_probabilities, probabilities, -1, torch.float32)
        self._derivatives.by_normalized_logits(
            probabilities=probabilities.numpy(),
            former=former.numpy(),
            actions=actions.numpy(),
            counts=counts,
            by_logarithms=self._by_logarithms,
            by_softmax=by_softmax.numpy(),
            by_logp=self._by_logp,
            derivatives=self._by_normalized.numpy(),
            negative=self._negative.numpy(),
        )
        by_norms = torch.sum(self._negative, -1, keepdim=True)
        torch.add(self._by_normalized, by_norms * torch.exp(logarithms), out=d_logits)


def _normalized(logits: Tensor) -> Tensor:
    """Return log-probabilities as computed by torch's Categorical."""
    return logits - torch.logsumexp(logits, -1, keepdim=True)
