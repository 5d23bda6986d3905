"""The derivatives of PPO's loss for categorical policies by autograd's operations, and so bit-identical to it."""

from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from fastmarl.core.native._ppo_exact import Derivatives
from fastmarl.rllib.learner.dense import memory
from fastmarl.rllib.learner.minibatches import MinibatchRows


class CategoricalLoss:
    """Computes the derivatives of the loss for minibatches of `n_rows` rows.

    Args:
        n_rows: Number of rows in a minibatch.
        n_logits: Number of logits in a row.
        coefficients: Coefficients of the loss, see Derivatives.
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
        """Write the derivatives of the loss with respect to logits and values. To be called without autograd.

        Args:
            minibatch: Columns that `are_known()`, with a loss mask.
            logits: The module's logits, float32 [n_rows, n_logits].
            values: The module's values, float32 [n_rows, 1].
            d_logits: Derivatives with respect to the logits, of the same shape. OUT
            d_values: Derivatives with respect to the values, of the same shape. OUT
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
    """Return the logarithms of probabilities, as torch's Categorical computes them."""
    return logits - torch.logsumexp(logits, -1, keepdim=True)
