"""Forward methods compiled with torch.compile."""

from typing import Any

import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.base import RLModule

FORWARDS = ("forward_exploration", "forward_inference")
CAPTURING_MODES = ("reduce-overhead", "max-autotune")  # in these modes, torch itself captures CUDA graphs


class CompiledForwards:
    """The two forward methods of a module, each compiled on its first call.

    If batch sizes, layers or weights change, torch recompiles as necessary.

    Args:
        module: The module.
        options: Arguments of `torch.compile`.

    Raises:
        ConfigError: If torch does not support the backend or mode.
    """

    def __init__(self, module: RLModule, options: dict[str, Any]):
        self._module = module
        try:
            self._explore = torch.compile(lambda batch, t: module.forward_exploration(batch, t=t), **options)
            self._infer = torch.compile(lambda batch: module.forward_inference(batch), **options)
        except RuntimeError as error:
            raise ConfigError(f"torch_compile_worker=True failed with torch.compile options {options}: "
                              f"{error}") from error  # fmt: skip

    def is_replaced(self) -> bool:
        """Return True if a forward method has been replaced, in which case the module must be called directly."""
        return any(name in vars(self._module) for name in FORWARDS)

    def forward_exploration(self, batch: dict[str, Any], t: int | None) -> Any:
        return self._called(self._explore, batch, t)

    def forward_inference(self, batch: dict[str, Any]) -> Any:
        return self._called(self._infer, batch)

    def _called(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            if type(error).__module__.startswith("torch._"):  # raised by the torch compilers
                error.add_note(f"torch.compile failed for {type(self._module).__name__}; set "
                               f"torch_compile_worker=False to run modules uncompiled")  # fmt: skip
            raise
