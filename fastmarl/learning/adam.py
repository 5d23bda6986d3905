"""Optimizer steps, fused into a single pass over memory for Adam."""

from typing import Any

import numpy as np
import torch
from torch.optim import optimizer as torch_optimizer

from fastmarl.core.native import _adam
from fastmarl.learning.flat_parameters import FlatParameters

FLAGS = ("amsgrad", "maximize", "capturable", "differentiable", "fused", "foreach", "weight_decay")
SMALLEST = 1e-6  # added to the norm that divides a gradient, as in torch


class FusedAdam:
    """Performs an Adam step in a single pass over memory; results equal torch's up to rounding.

    Args:
        optimizer: A torch Adam optimizer for which `can_fuse()` returns True. Parameters, gradients and moments must
            stay in place.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer
        self._groups = []
        for group in optimizer.param_groups:
            places = [places_of(parameter, optimizer.state[parameter]) for parameter in group["params"]]
            written = [each for parameter in group["params"] for each in (parameter, *_views(parameter))]
            self._groups.append((group, np.array(places, np.uintp).reshape(-1, 6), written))

    def step(self) -> None:
        """Update the parameters with their current gradients."""
        for group, places, written in self._groups:
            beta1, beta2 = group["betas"]
            _adam.step(places, group["lr"], beta1, beta2, group["eps"])
            torch.autograd.graph.increment_version(written)
        self._optimizer._opt_called = True  # type: ignore[attr-defined]  # schedulers check this flag


class OptimizerSteps:
    """Takes the steps of an optimizer, fused into a single pass where possible."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: FlatParameters):
        self._optimizer, self._parameters = optimizer, parameters
        self._fused: FusedAdam | None = None

    def step(self, unreached: list[slice]) -> None:
        """Take a step; parameters without a gradient, and their moments, remain unchanged.

        The optimizer itself takes the first step, which creates the moments.

        Args:
            unreached: Positions of the parameters without a gradient.
        """
        if self._fused is None and can_fuse(self._optimizer):
            self._fused = FusedAdam(self._optimizer)
        kept = []
        if unreached:
            state = self._optimizer.state.get(self._parameters, {}).values()
            moments = [
                each for each in state if isinstance(each, torch.Tensor) and each.shape == self._parameters.shape
            ]
            kept = self._parameters.kept(unreached, *moments)
        (self._fused or self._optimizer).step()
        self._parameters.put_back(kept)


def limit_norm(gradient: torch.Tensor, most: float | None) -> float:
    """Scale a gradient down to the norm `most` if its norm is larger; return the norm before scaling."""
    norm = float(torch.linalg.vector_norm(gradient))
    if most is not None and norm > most:
        gradient.mul_(most / (norm + SMALLEST))
    return norm


def can_fuse(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if the optimizer is torch.optim.Adam with default flags and has stepped all of its parameters."""
    return (
        is_plain(optimizer)
        and all(has_state(optimizer, group) for group in optimizer.param_groups)
        and all(_is_dense(state["step"]) for state in optimizer.state.values())
    )


def places_of(parameter: Any, state: dict[str, Any]) -> tuple[int, ...]:
    """Return the addresses of a parameter, its gradient and its moments, and its size."""
    tensors = parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"]
    return *(tensor.data_ptr() for tensor in tensors), parameter.numel()


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if `step()` of the optimizer is the method of torch.optim.Adam, without hooks or replacements."""
    hooks = (
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
        *(torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks),
    )
    step = vars(optimizer).get("step")  # schedulers wrap it to detect calls
    is_own = step is not None and not hasattr(step, "_wrapped_by_lr_sched")
    return type(optimizer) is torch.optim.Adam and not is_own and not any(hooks)


def has_state(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Return True if the group has already stepped all of its parameters, with supported options."""
    if any(group.get(flag) for flag in FLAGS) or isinstance(group["lr"], torch.Tensor):
        return False
    if not 0.5 < group["betas"][0] < 1:  # outside, lerp() of torch uses a different formula
        return False
    for parameter in group["params"]:
        state, gradient = optimizer.state.get(parameter), parameter.grad
        if not state or gradient is None:
            return False
        tensors = parameter, gradient, state["exp_avg"], state["exp_avg_sq"]
        if not all(_is_dense(each) and each.shape == parameter.shape for each in tensors):
            return False
    return len({float(optimizer.state[parameter]["step"]) for parameter in group["params"]}) <= 1


def _views(parameter: Any) -> list[torch.nn.Parameter]:
    return parameter.parameters if isinstance(parameter, FlatParameters) else []


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_cpu and tensor.layout == torch.strided and tensor.is_contiguous()
