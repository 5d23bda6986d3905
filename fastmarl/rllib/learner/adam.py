"""Adam's step for all parameters of an optimizer: with torch's bits in a fifth of its passes, or rounded, in one."""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer as torch_optimizer

from fastmarl.core.native import _adam

FLAGS = ("amsgrad", "maximize", "capturable", "differentiable", "fused", "foreach", "weight_decay")


def step(optimizer: torch.optim.Optimizer) -> None:
    """As `optimizer.step()`, in fewer operations where that is torch's Adam on the CPU with its defaults."""
    if _is_plain(optimizer) and all(_has_state(optimizer, group) for group in optimizer.param_groups) and is_exact():
        ExactAdam(optimizer).step()
    else:
        optimizer.step()


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    hooks = (
        *(optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks),
        *(torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks),
    )
    return type(optimizer) is torch.optim.Adam and "step" not in vars(optimizer) and not any(hooks)


def _has_state(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Whether all of a group's parameters were stepped before, as they will be now."""
    if any(group.get(flag) for flag in FLAGS) or isinstance(group["lr"], torch.Tensor):
        return False
    if not 0.5 < group["betas"][0] < 1:  # torch's lerp() has another formula elsewhere
        return False
    for parameter in group["params"]:
        state, gradient = optimizer.state.get(parameter), parameter.grad
        if not state or gradient is None:
            return False
        if not all(map(_is_dense, (parameter, gradient, state["exp_avg"], state["exp_avg_sq"]))):
            return False
    return len({float(optimizer.state[parameter]["step"]) for parameter in group["params"]}) <= 1


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_cpu and tensor.layout == torch.strided and tensor.is_contiguous()


class ExactAdam:
    """An optimizer's steps with torch's bits, in fewer passes over memory.

    Args:
        optimizer: torch's Adam, of which `can_fuse()` is true where `is_exact()` is. Parameters, gradients and moments
            stay where they are.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._groups = [_ExactGroup(group, optimizer.state) for group in optimizer.param_groups if group["params"]]

    def step(self) -> None:
        """As the optimizer's."""
        with torch.no_grad():
            for group in self._groups:
                group.step()


class _ExactGroup:
    def __init__(self, group: dict[str, Any], states: dict[Any, dict[str, Any]]):
        self._group = group
        self._steps = [states[parameter]["step"] for parameter in group["params"]]
        self._parameters = []
        for parameter in group["params"]:
            square = states[parameter]["exp_avg_sq"]
            root = torch.empty_like(square)
            places = (*_places(parameter, states[parameter])[:4], root.data_ptr(), parameter.numel())
            self._parameters.append((places, square, root))

    def step(self) -> None:
        (beta1, beta2), lr, eps = self._group["betas"], self._group["lr"], self._group["eps"]
        torch._foreach_add_(self._steps, 1)
        n_steps = self._steps[0].item()
        correction, size = (1 - beta2**n_steps) ** 0.5, lr / (1 - beta1**n_steps)
        for (at, gradient_at, mean_at, square_at, root_at, n), square, root in self._parameters:
            _adam.update_moments(gradient_at, mean_at, square_at, n, beta1, beta2)
            torch.sqrt(square, out=root)  # which is not always the nearest number, so it is torch that has to take it
            _adam.update_parameters(at, mean_at, root_at, n, correction, eps, -size)
        torch.autograd.graph.increment_version(self._group["params"])


class FusedAdam:
    """An optimizer's step in one pass over memory, equal to torch's but for rounding.

    Args:
        optimizer: torch's Adam, of which `can_fuse()` is true. Parameters, gradients and moments stay where they are.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._groups = []
        for group in optimizer.param_groups:
            places = [_places(parameter, optimizer.state[parameter]) for parameter in group["params"]]
            self._groups.append((group, np.array(places, np.uintp).reshape(-1, 6)))

    def step(self) -> None:
        """As the optimizer's."""
        for group, places in self._groups:
            beta1, beta2 = group["betas"]
            _adam.step(places, group["lr"], beta1, beta2, group["eps"])
            torch.autograd.graph.increment_version(group["params"])


def can_fuse(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer is torch's Adam with its defaults, and all its parameters were stepped before."""
    return (
        _is_plain(optimizer)
        and all(_has_state(optimizer, group) for group in optimizer.param_groups)
        and all(_is_dense(state["step"]) for state in optimizer.state.values())
    )


def _places(parameter: Any, state: dict[str, Any]) -> tuple[int, ...]:
    tensors = parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"]
    return *(tensor.data_ptr() for tensor in tensors), parameter.numel()


@cache
def is_exact() -> bool:
    """Whether this torch on this machine rounds as `_adam` does; tried once, on numbers of many sizes."""
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad():
        for n in (*range(1, 40), 100, 1023, 5000):
            ours, theirs = (torch.nn.Parameter(torch.linspace(-2, 2, n)) for _ in range(2))
            optimizers = [torch.optim.Adam([parameter], lr=0.1) for parameter in (ours, theirs)]
            for k in range(4):
                gradient = torch.randn(n, generator=generator) * 10.0 ** (k - 2)
                ours.grad, theirs.grad = gradient.clone(), gradient.clone()
                optimizers[1].step()
                if k:
                    ExactAdam(optimizers[0]).step()
                else:
                    optimizers[0].step()
                if not torch.equal(ours, theirs):
                    return False
    return True
