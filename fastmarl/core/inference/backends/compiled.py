"""Forward methods by torch.compile, for those modules where it pays."""

from typing import Any

import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.base import RLModule

FORWARDS = ("forward_exploration", "forward_inference")
CAPTURING_MODES = ("reduce-overhead", "max-autotune")  # torch then captures CUDA graphs itself


class CompiledForwards:
    """A module's two forward methods for acting, compiled when they are first called.

    New batch sizes, layers and weights are torch's business: it compiles again where that is needed.

    Args:
        options: arguments of `torch.compile`.

    Raises:
        ConfigError: torch knows no such backend or mode.
    """

    def __init__(self, module: RLModule, options: dict[str, Any]):
        self._module = module
        try:
            self._explore = torch.compile(lambda batch, t: module.forward_exploration(batch, t=t), **options)
            self._infer = torch.compile(lambda batch: module.forward_inference(batch), **options)
        except RuntimeError as error:
            raise ConfigError(f"torch_compile_worker with torch.compile's options {options}: {error}") from error

    def is_replaced(self) -> bool:
        """Whether a method was replaced by another: the module is then called as it is."""
        return any(name in vars(self._module) for name in FORWARDS)

    def forward_exploration(self, batch: dict[str, Any], t: int | None) -> Any:
        return self._called(self._explore, batch, t)

    def forward_inference(self, batch: dict[str, Any]) -> Any:
        return self._called(self._infer, batch)

    def _called(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            if type(error).__module__.startswith("torch._"):  # where torch's compilers have their errors
                error.add_note(f"torch.compile failed for {type(self._module).__name__}; torch_compile_worker=False "
                               f"leaves modules as they are")  # fmt: skip
            raise
