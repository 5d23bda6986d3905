"""The gradient of PPO's loss with torch's bits."""

from typing import Any

from ray.rllib.core.columns import Columns
from torch import nn

from fastmarl.rllib.learner.categorical_loss import CategoricalLoss
from fastmarl.rllib.learner.minibatches import Rows
from fastmarl.rllib.learner.module_gradient import ModuleGradient
from fastmarl.rllib.learner.module_parts import Parts


class ExactGradient:
    """Computes it for minibatches of so many rows.

    Args:
        module: of which `parts_of_module()` knows the parts, and whose actions are discrete.
        parts: those.
        n_rows: of a minibatch.
        coefficients: of the loss, see Derivatives.

    Attributes:
        net: whose gradients `compute()` overwrites.
    """

    def __init__(self, module: nn.Module, parts: Parts, n_rows: int, coefficients: dict[str, Any]):
        self.net = ModuleGradient(module, parts, n_rows, is_exact=True)
        self._loss = CategoricalLoss(n_rows, parts.n_logits, coefficients)

    def compute(self, minibatch: Rows) -> None:
        """Of these rows. To be called without autograd."""
        net = self.net
        net.forward(minibatch[Columns.OBS])
        self._loss.derive(minibatch, net.logits, net.values, net.d_logits, net.d_values)
        net.backward()
