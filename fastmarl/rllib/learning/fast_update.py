"""An update in which gradients are computed without autograd, equal to RLlib's but for rounding."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.policy.sample_batch import MultiAgentBatch
from torch import Tensor

from fastmarl.native._ppo import PPOLoss
from fastmarl.rllib.learning import adam
from fastmarl.rllib.learning.minibatches import RowNumbers
from fastmarl.rllib.learning.module_gradient import ModuleGradient, Parts, packed_rows, parts_of_module


class FastUpdate:
    """Gradients and optimizer steps of all minibatches of one update.

    Args:
        nets: by module id.
        packed: by module id, the rows that PPOLoss reads of the train batch.
        parameters: of the learner.

    Attributes:
        gradients: by parameter, None of those that are in none of the nets; `compute()` overwrites them.
    """

    def __init__(self, nets: dict[str, ModuleGradient], packed: dict[str, Tensor], parameters: Iterable[Tensor]):
        self.gradients: dict[Tensor, Tensor | None] = dict.fromkeys(parameters)
        for net in nets.values():
            self.gradients.update(net.gradients)
        self._nets = nets
        self._packed = packed
        self._steppers: dict[Any, adam.FusedAdam] = {}
        self._are_handed_over = False

    def compute(self, batch: dict[str, RowNumbers]) -> bool:
        """Overwrite all `gradients`; returns whether they are finite."""
        total = 0.0
        with torch.no_grad():
            for module_id, net in self._nets.items():
                torch.index_select(self._packed[module_id], 0, batch[module_id].numbers, out=net.rows)
                net.compute()
                total += float(net.flat.sum())  # which is finite only if all of them are
        is_finite = math.isfinite(total)
        self._are_handed_over &= is_finite  # else others take their place
        return is_finite

    def hand_over(self) -> dict[Tensor, Tensor | None]:
        """The gradients as `compute_gradients()` returns them, and parameters have them."""
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        self._are_handed_over = True
        return dict(self.gradients)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """As `optimizer.step()`, with `gradients`."""
        if not self._are_handed_over:
            self.hand_over()
        if optimizer not in self._steppers:
            if not adam.can_fuse(optimizer):
                adam.step(optimizer)
                return
            self._steppers[optimizer] = adam.FusedAdam(optimizer)
        self._steppers[optimizer].step()


def fast_update(learner: Any, batch: MultiAgentBatch, n_rows: int) -> FastUpdate | None:
    """What computes an update of these minibatches; None if it is not known to be what RLlib computes.

    Args:
        learner: a PPOTorchLearner whose losses and gradients are RLlib's.
        batch: the train batch, of which `are_plain()` is true.
        n_rows: of each module in a minibatch.
    """
    if not _is_simple(learner):
        return None
    nets, packed = {}, {}
    for module_id, module_batch in batch.policy_batches.items():
        if module_id not in learner.module:
            return None
        parts = parts_of_module(learner.module[module_id])
        config = learner.config.get_config_for_module(module_id)
        rows = None if parts is None or not config.use_critic else packed_rows(module_batch, parts)
        if parts is None or rows is None:
            return None
        loss = _loss(learner, module_id, config, parts)
        nets[module_id] = ModuleGradient(learner.module[module_id], parts, n_rows, loss)
        packed[module_id] = rows
    trained = [parameter for net in nets.values() for parameter in net.gradients]
    if len(set(trained)) < len(trained) or not all(learner._params.get(each) is each for each in trained):
        return None
    return FastUpdate(nets, packed, learner._params.values())


def _is_simple(learner: Any) -> bool:
    return (
        type(learner.module) is MultiRLModule
        and torch.device(learner._device).type == "cpu"
        and not learner.config.torch_compile_learner
        and learner._grad_scalers is None
        and learner._lr_scheduler_classes is None
        and not torch.is_autocast_enabled("cpu")
        and torch.is_grad_enabled()
    )


def _loss(learner: Any, module_id: str, config: Any, parts: Parts) -> PPOLoss:
    return PPOLoss(
        clip_param=config.clip_param,
        vf_clip_param=config.vf_clip_param,
        vf_loss_coeff=config.vf_loss_coeff,
        entropy_coeff=float(learner.entropy_coeff_schedulers_per_module[module_id].get_current_value()),
        kl_coeff=float(learner.curr_kl_coeffs_per_module[module_id]) if config.use_kl_loss else None,
        bound=parts.bound,
    )
