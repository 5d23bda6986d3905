"""Trains a value network by regression."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from fastmarl.core.errors import BatchError, ConfigError, ModuleOutputError
from fastmarl.core.modules.base import RLModule
from fastmarl.core.objects.public import public
from fastmarl.core.spaces.columns import Columns
from fastmarl.learning.ppo_learner import PPOLearner
from fastmarl.learning.tensors import to_tensors

NEEDED = (Columns.OBS, Columns.VALUE_TARGETS)
STATS = ("vf_loss", "vf_explained_var", "grad_norm")


@public("fastmarl.learning")
class ValueLearner:
    """Trains a value network, such as a central critic of the global state, in place by regression on targets.

    ```python
    critic = nn.Sequential(nn.Linear(18, 64), nn.Tanh(), nn.Linear(64, 1))
    learner = ValueLearner(critic, lr=1e-3)
    stats = learner.update({"obs": states, "value_targets": targets})
    ```

    The loss is the mean squared error. Its gradient is compiled for the same networks as in `PPOLearner`.

    Args:
        network: Maps inputs [n, ...] to values [n, 1]. Its parameters are moved into a single tensor, see
            `flat_parameters()`.
        lr: See `PPOLearner`.
        adam_eps: See `PPOLearner`.
        epochs: See `PPOLearner`.
        num_minibatches: See `PPOLearner`.
        minibatch_size: See `PPOLearner`.
        vf_clip: See `PPOLearner`.
        max_grad_norm: See `PPOLearner`.
        generator: See `PPOLearner`.
        compiled: See `PPOLearner`.
        num_threads: See `PPOLearner`.

    Attributes:
        optimizer, parameters: See `PPOLearner`.

    Raises:
        ConfigError: If the network is an RLModule; otherwise see `PPOLearner`.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        lr: float = 3e-4,
        adam_eps: float = 1e-5,
        epochs: int = 4,
        num_minibatches: int = 4,
        minibatch_size: int | None = None,
        vf_clip: float | None = None,
        max_grad_norm: float | None = 0.5,
        generator: torch.Generator | None = None,
        compiled: bool = True,
        num_threads: int | None = None,
    ):
        if isinstance(network, RLModule):
            raise ConfigError(f"expected a network that maps inputs to values [n, 1], got the RLModule "
                              f"{type(network).__name__}; use PPOLearner for RLModules")  # fmt: skip
        self._ppo = PPOLearner(
            _OneAction(network),
            lr=lr,
            adam_eps=adam_eps,
            epochs=epochs,
            num_minibatches=num_minibatches,
            minibatch_size=minibatch_size,
            vf_coeff=1.0,
            vf_clip=vf_clip,
            entropy_coeff=0.0,
            max_grad_norm=max_grad_norm,
            generator=generator,
            compiled=compiled,
            num_threads=num_threads,
        )
        self.optimizer, self.parameters = self._ppo.optimizer, self._ppo.parameters

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.parameters):,} parameters, {self.backend}>"

    @property
    def backend(self) -> str:
        """Backend that computes the gradients: "compiled", or "autograd" followed by the reason."""
        return self._ppo.backend

    def update(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """Train on a batch for all epochs.

        Args:
            batch: Arrays or tensors: "obs" [n, ...], the inputs of the network; "value_targets" [n]; and optionally
                "loss_mask" bool [n]; all rows count by default. Other columns are ignored.

        Returns:
            "vf_loss", "vf_explained_var" and "grad_norm", see `ppo_loss()` and `PPOLearner.update()`.

        Raises:
            BatchError, ConfigError: See `PPOLearner.update()`.
            ModuleOutputError: If the network does not output [n, 1].
        """
        if missing := [name for name in NEEDED if name not in batch]:
            raise BatchError(f"ValueLearner needs the columns {missing}, got only {list(batch)}")
        targets = to_tensors(batch, [Columns.VALUE_TARGETS], self.parameters.device)[Columns.VALUE_TARGETS]
        if targets.dim() != 1:
            raise BatchError(f"expected 'value_targets' [n], one for each row, got shape {tuple(targets.shape)}")
        zeros = torch.zeros_like(targets)
        of_action = {Columns.ACTIONS: zeros.long(), Columns.ACTION_LOGP: zeros, Columns.ADVANTAGES: zeros}
        mask = {Columns.LOSS_MASK: batch[Columns.LOSS_MASK]} if Columns.LOSS_MASK in batch else {}
        rows = {Columns.OBS: batch[Columns.OBS], Columns.VALUE_TARGETS: targets, **mask}
        stats = self._ppo.update({**rows, **of_action})
        return {name: stats[name] for name in STATS}


class _OneAction(RLModule):
    """A value network as a module with a single action, so that the PPO loss consists of the value error only."""

    def __init__(self, network: nn.Module):
        super().__init__(None, gym.spaces.Discrete(1))
        self.network = network
        like = next(network.parameters(), torch.zeros(0))
        self.no_weight = nn.Parameter(like.new_zeros(1, 1), requires_grad=False)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        values = self.network(batch[Columns.OBS])
        if values.dim() != 2 or values.shape[1] != 1:
            problem = f"expected values [n, 1], one for each row, got shape {tuple(values.shape)}"
            raise ModuleOutputError(type(self.network).__name__, problem)
        logits = nn.functional.linear(values, self.no_weight)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.VF_PREDS: values.squeeze(-1)}
