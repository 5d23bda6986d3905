"""An update that computes gradients without autograd: bit-identical to RLlib, or equal up to rounding."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch
from torch import Tensor

from fastmarl.core.nets.dense_layers import NotDenseError
from fastmarl.learning.adam import FusedAdam, can_fuse
from fastmarl.rllib.learner import adam
from fastmarl.rllib.learner.module_gradient import ExactGradient, RoundedGradient
from fastmarl.rllib.learner.module_parts import PPOModuleParts, parts_of_module

MOST_CHECKS = 8  # maximum number of minibatches per update whose gradients are compared with autograd


class DirectUpdate:
    """Computes gradients and takes optimizer steps for all minibatches of an update.

    Args:
        modules: Module id -> ExactGradient or RoundedGradient.
        parameters: Parameters of the learner.
        is_exact: True if the modules are ExactGradients.

    Attributes:
        is_checked: True if the gradients can be trusted; exact gradients are first compared with autograd.
        gradients: Parameter -> gradient, overwritten by `compute()`; None for parameters of other modules.
    """

    def __init__(self, modules: dict[str, Any], parameters: Iterable[Tensor], *, is_exact: bool):
        self.is_checked = not is_exact
        self.gradients: dict[Tensor, Tensor | None] = dict.fromkeys(parameters)
        for module in modules.values():
            self.gradients.update(module.gradients)
        self._modules = modules
        self._is_exact = is_exact
        self._steppers: dict[Any, Any] = {}
        self._are_handed_over = False
        self._n_checks = 0
        self._not_compared = {parameter for parameter, gradient in self.gradients.items() if gradient is not None}

    def compute(self, batch: dict[str, Any]) -> bool:
        """Compute all `gradients` and return True if they are finite."""
        total = 0.0
        with torch.no_grad():
            for module_id, module in self._modules.items():
                module.compute(batch[module_id])
                total += float(module.flat.sum())  # a sum is finite only if all its terms are
        is_finite = math.isfinite(total)
        self._are_handed_over &= is_finite  # non-finite gradients will be replaced with gradients from autograd
        return is_finite

    def check(self, batch: dict[str, Any], gradients: dict[Tensor, Tensor | None]) -> bool:
        """Compare the gradients of a minibatch with autograd, and return False if direct updates must not be used.

        Sets `is_checked` once a non-zero gradient of each parameter has been found equal.
        """
        self._n_checks += 1
        is_finite = self.compute(batch)
        self._are_handed_over = False
        if self.gradients.keys() != gradients.keys():
            return False
        if is_finite:
            for parameter, ours in self.gradients.items():
                theirs = gradients[parameter]
                if ours is None or theirs is None:
                    if ours is not theirs:
                        return False
                elif not torch.equal(ours, theirs):
                    return False
                elif ours.any():
                    self._not_compared.discard(parameter)
            self.is_checked = not self._not_compared
        return self.is_checked or self._n_checks < MOST_CHECKS

    def hand_over(self) -> dict[Tensor, Tensor | None]:
        """Set `grad` of the parameters and return the gradients like `compute_gradients()`."""
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient
        self._are_handed_over = True
        return dict(self.gradients)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a step of the optimizer with `gradients`."""
        if not self._are_handed_over:
            self.hand_over()
        if optimizer not in self._steppers:
            if not can_fuse(optimizer) or (self._is_exact and not adam.is_exact()):
                adam.step(optimizer)
                return
            self._steppers[optimizer] = (adam.ExactAdam if self._is_exact else FusedAdam)(optimizer)
        self._steppers[optimizer].step()


def direct_update(learner: Any, batch: MultiAgentBatch, n_rows: int, *, is_exact: bool) -> DirectUpdate | None:
    """Return a DirectUpdate for minibatches of this batch, or None if its results may differ from RLlib.

    Args:
        learner: A PPOTorchLearner with RLlib's original losses and gradients.
        batch: The train batch, for which `are_plain()` returns True.
        n_rows: Number of rows per module in a minibatch.
        is_exact: True if gradients must be bit-identical to RLlib, not only equal up to rounding.
    """
    if not _is_simple(learner):
        return None
    modules = {name: _gradient(learner, name, rows, n_rows, is_exact) for name, rows in batch.policy_batches.items()}
    if None in modules.values():
        return None
    trained = [parameter for module in modules.values() for parameter in module.gradients]
    if len(set(trained)) < len(trained) or not all(learner._params.get(each) is each for each in trained):
        return None
    return DirectUpdate(modules, learner._params.values(), is_exact=is_exact)


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


def _gradient(learner: Any, module_id: str, batch: dict[str, Tensor], n_rows: int, is_exact: bool) -> Any:
    if module_id not in learner.module:
        return None
    module, config = learner.module[module_id], learner.config.get_config_for_module(module_id)
    parts = parts_of_module(module)
    if parts is None or not config.use_critic or not are_known(batch, parts):
        return None
    coefficients = _coefficients(learner, module_id, config)
    if not is_exact:
        try:
            return RoundedGradient(module, parts, batch, coefficients)
        except NotDenseError:
            return None
    # BLAS may treat a single-row matrix as a vector, depending on strides, which differ in autograd.
    if not parts.is_discrete or Columns.LOSS_MASK not in batch or n_rows < 2:
        return None
    return ExactGradient(module, parts, n_rows, coefficients)


def _coefficients(learner: Any, module_id: str, config: Any) -> dict[str, Any]:
    """Return the loss coefficients of a module."""
    entropy_coeff = learner.entropy_coeff_schedulers_per_module[module_id].get_current_value()
    return {
        "clip_param": config.clip_param,
        "vf_clip_param": config.vf_clip_param,
        "vf_loss_coeff": config.vf_loss_coeff,
        "entropy_coeff": float(entropy_coeff),
        "kl_coeff": float(learner.curr_kl_coeffs_per_module[module_id]) if config.use_kl_loss else None,
    }


COLUMNS = (
    *(Columns.OBS, Columns.ACTIONS, Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP),
    *(Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS),
)


def are_known(batch: dict[str, Tensor], parts: PPOModuleParts) -> bool:
    """Return True if a train batch has `COLUMNS`, and possibly a loss mask, in the form created by RLlib connectors."""
    if not all(name in batch for name in COLUMNS):
        return False
    columns = [batch[name] for name in COLUMNS]
    n, actions = len(columns[0]), batch[Columns.ACTIONS]
    mask = batch.get(Columns.LOSS_MASK, torch.ones(n, dtype=torch.bool, device="cpu"))
    action_shape = () if parts.is_discrete else (parts.n_logits // 2,)
    shapes: tuple[tuple[int, ...], ...] = (parts.n_obs,), action_shape, (parts.n_logits,), (), (), ()
    if any(column.shape != (n, *shape) for column, shape in zip(columns, shapes, strict=True)):
        return False
    floats = [column for column in columns if column is not actions or not parts.is_discrete]
    if not all(column.dtype == torch.float32 and column.is_cpu for column in floats):
        return False
    if mask.dtype != torch.bool or mask.shape != (n,) or not mask.is_cpu:
        return False
    return not parts.is_discrete or _are_indices(actions, parts)


def _are_indices(actions: Tensor, parts: PPOModuleParts) -> bool:
    """Return True if discrete actions are valid choices of the module, and exact in float32."""
    if actions.dtype not in (torch.int32, torch.int64) or not actions.is_cpu:
        return False
    return 0 <= int(actions.min()) <= int(actions.max()) < min(parts.n_logits, 2**24)
