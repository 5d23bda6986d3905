"""The gradient of PPO's loss, rounded otherwise than by torch."""

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from torch import Tensor, nn

from fastmarl.core.native._ppo import PPOLoss
from fastmarl.rllib.learner.dense import memory
from fastmarl.rllib.learner.minibatches import RowNumbers
from fastmarl.rllib.learner.module_gradient import ModuleGradient
from fastmarl.rllib.learner.module_parts import Parts
from fastmarl.rllib.learner.train_columns import COLUMNS


class RoundedGradient:
    """Computes it for minibatches of so many rows.

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
        self, module: nn.Module, parts: Parts, batch: dict[str, Tensor], n_rows: int, coefficients: dict[str, Any]
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
        """Of the rows of these numbers. To be called without autograd."""
        torch.index_select(self._packed, 0, minibatch.numbers, out=self._rows)
        self.net.forward(self._obs)
        self._take_loss(*self._arrays)
        self.net.backward()


def packed_rows(batch: dict[str, Tensor]) -> Tensor:
    """All rows of a train batch as PPOLoss has them."""
    columns = [batch[name] for name in COLUMNS]
    columns.append(batch.get(Columns.LOSS_MASK, torch.ones(len(columns[0]), device="cpu")))
    return torch.cat([each.reshape(len(each), -1).to(torch.float32) for each in columns], 1)
