"""A default module's outputs and the gradient of its parameters, without autograd."""

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.torch.heads import TorchFreeLogStdMLPHead
from torch import Tensor, nn

from fastmarl.core.native._ppo import PPOLoss
from fastmarl.rllib.learner.categorical_loss import CategoricalLoss
from fastmarl.rllib.learner.dense import DenseStack, Gradients, layers_of, memory
from fastmarl.rllib.learner.minibatches import MinibatchRows, RowNumbers
from fastmarl.rllib.learner.module_parts import PPOModuleParts
from fastmarl.rllib.learner.train_columns import COLUMNS

ALIGNED = 16  # floats: gradients begin where torch's own tensors may, on which the bits of matrix products depend


class ModuleGradient:
    """Works on minibatches of `n_rows` rows, in the same memory each time. To be called without autograd.

    Args:
        module: of which `parts_of_module()` knows the parts.
        parts: those.
        n_rows: of a minibatch.
        is_exact: whether outputs and gradients are to be bit-identical to torch's; else they are rounded otherwise.

    Attributes:
        logits: a policy's distribution inputs [n_rows, n_logits], of the last `forward()`.
        values: [n_rows, 1], of the last `forward()`.
        d_logits, d_values: derivatives of a loss by these, which `backward()` reads.
        flat: all gradients, one after the other, with zeros between them.
        gradients: by parameter, which are views of it.
    """

    def __init__(self, module: nn.Module, parts: PPOModuleParts, n_rows: int, *, is_exact: bool):
        parameters = list(module.parameters())
        sizes = [-(-each.numel() // ALIGNED) * ALIGNED for each in parameters]
        self.flat = memory(sum(sizes)).zero_()
        self.gradients: Gradients = {
            each: piece[: each.numel()].view(each.shape)
            for each, piece in zip(parameters, self.flat.split(sizes), strict=True)
        }
        self.logits = memory(n_rows, parts.n_logits)
        self.d_logits = torch.empty_like(self.logits)
        is_free = type(parts.policy) is TorchFreeLogStdMLPHead
        n_means = parts.n_logits // 2 if is_free else parts.n_logits
        self._log_std = parts.policy.log_std if is_free else None
        self._d_outputs = self.d_logits[:, :n_means]
        self._scales, self._d_scales = self.logits[:, n_means:], self.d_logits[:, n_means:]

        def stack(layers: nn.Sequential, *, is_first: bool, outputs: Tensor | None = None) -> DenseStack:
            return DenseStack(layers_of(layers, n_rows, self.gradients, outputs, is_exact=is_exact), is_first)

        self._trunk = self._value_trunk = stack(parts.trunk, is_first=True)
        if parts.value_trunk is not parts.trunk:
            self._value_trunk = stack(parts.value_trunk, is_first=True)
        self._head = stack(parts.policy.net.mlp, is_first=False, outputs=self.logits[:, :n_means])
        self._value_head = stack(parts.value, is_first=False)
        self.values = self._value_head.outputs
        self.d_values = torch.empty_like(self.values)

    def forward(self, obs: Tensor) -> None:
        """Overwrite `logits` and `values` with those of observations [n_rows, n_obs]."""
        features = self._trunk.forward(obs)
        self._head.forward(features)
        if self._log_std is not None:
            self._scales.copy_(self._log_std.detach())
        is_shared = self._value_trunk is self._trunk
        self._value_head.forward(features if is_shared else self._value_trunk.forward(obs))

    def backward(self) -> None:
        """Overwrite `gradients` with those by `d_logits` and `d_values` of the last `forward()`."""
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
    """Computes the gradient for minibatches of `n_rows` rows.

    Args:
        module: of which `parts_of_module()` knows the parts, and whose actions are discrete.
        parts: those.
        n_rows: of a minibatch.
        coefficients: of the loss, see Derivatives.

    Attributes:
        net: whose gradients `compute()` overwrites.
    """

    def __init__(self, module: nn.Module, parts: PPOModuleParts, n_rows: int, coefficients: dict[str, Any]):
        self.net = ModuleGradient(module, parts, n_rows, is_exact=True)
        self._loss = CategoricalLoss(n_rows, parts.n_logits, coefficients)

    def compute(self, minibatch: MinibatchRows) -> None:
        """Overwrite the gradients with those of these rows. To be called without autograd."""
        net = self.net
        net.forward(minibatch[Columns.OBS])
        self._loss.derive(minibatch, net.logits, net.values, net.d_logits, net.d_values)
        net.backward()


class RoundedGradient:
    """Computes the gradient for minibatches of `n_rows` rows.

    Args:
        module: of which `parts_of_module()` knows the parts.
        parts: those.
        batch: the train batch, of which `are_known()` is true.
        n_rows: of a minibatch.
        coefficients: of the loss, see PPOLoss.

    Attributes:
        net: whose gradients `compute()` overwrites.
    """

    def __init__(
        self,
        module: nn.Module,
        parts: PPOModuleParts,
        batch: dict[str, Tensor],
        n_rows: int,
        coefficients: dict[str, Any],
    ):
        self.net = ModuleGradient(module, parts, n_rows, is_exact=False)
        self._packed = packed_rows(batch)
        self._rows = memory(n_rows, self._packed.shape[1])
        self._obs = self._rows[:, : parts.n_obs]
        loss, net = PPOLoss(**coefficients, bound=parts.bound), self.net
        self._take_loss = loss.categorical if parts.is_discrete else loss.gaussian
        arrays = (each.numpy() for each in (net.logits, net.values, net.d_logits, net.d_values))
        self._arrays: Any = self._rows.numpy(), parts.n_obs, *arrays

    def compute(self, minibatch: RowNumbers) -> None:
        """Overwrite the gradients with those of the rows of these numbers. To be called without autograd."""
        torch.index_select(self._packed, 0, minibatch.numbers, out=self._rows)
        self.net.forward(self._obs)
        self._take_loss(*self._arrays)
        self.net.backward()


def packed_rows(batch: dict[str, Tensor]) -> Tensor:
    """All rows of a train batch as PPOLoss has them."""
    columns = [batch[name] for name in COLUMNS]
    columns.append(batch.get(Columns.LOSS_MASK, torch.ones(len(columns[0]), device="cpu")))
    return torch.cat([each.reshape(len(each), -1).to(torch.float32) for each in columns], 1)
