"""Switches modules to evaluation mode for a forward pass and back, as in RLlib, but without torch's recursion.

RLlib calls `eval()` and `train()` around each forward pass, which takes longer than the layers of a small network.
"""

import inspect
from types import TracebackType
from typing import Any

from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import nn

FORWARDS = ("forward_exploration", "forward_inference")
WALK = ("train", "eval", "children", "named_children", "__setattr__")
METHODS = {  # the originals, read before user code can replace them
    **{(TorchRLModule, name): getattr(TorchRLModule, name) for name in FORWARDS},
    **{(nn.Module, name): getattr(nn.Module, name) for name in WALK},
}


class EvaluationSwitch:
    """Context manager that puts a module and its submodules into evaluation mode, then back if it was training.

    Args:
        module: Module accepted by `switch_of()`. Its submodules must not be replaced while the switch is in use.
    """

    def __init__(self, module: nn.Module):
        self._module = module
        self._names = [vars(part) for part in module.modules()]
        self._was_training = False

    def __enter__(self) -> None:
        self._was_training = self._module.training
        for names in self._names:
            names["training"] = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._was_training:
            for names in self._names:
                names["training"] = True


def switch_of(module: Any) -> EvaluationSwitch | None:
    """Return a switch that replaces `eval()` and `train()` of the module, or None if these may have other effects."""
    is_plain = (
        isinstance(module, TorchRLModule)
        and all(_is_original(module, TorchRLModule, name) for name in FORWARDS)
        and all(_is_plain_part(part) for part in module.modules())
    )
    return EvaluationSwitch(module) if is_plain else None


def _is_plain_part(part: nn.Module) -> bool:
    return (
        "training" in vars(part)
        and inspect.getattr_static(type(part), "training", None) is None
        and all(_is_original(part, nn.Module, name) for name in WALK)
    )


def _is_original(part: nn.Module, owner: type, name: str) -> bool:
    return getattr(type(part), name) is METHODS[owner, name] and name not in vars(part)
