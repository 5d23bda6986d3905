"""Wraps a single torch module as an `RLModule`."""

import torch

from fastmarl.core.errors import ConfigError
from fastmarl.core.modules.base import RLModule, as_rl_module
from fastmarl.core.modules.multi import MultiRLModule


def one_module(module: torch.nn.Module) -> RLModule:
    """Wrap a module as an RLModule; see `as_rl_module()`.

    Raises:
        ConfigError: If `module` is not a torch module, is a MultiRLModule, or acted for agents with different spaces.
    """
    if isinstance(module, MultiRLModule):
        raise ConfigError(f"expected a single module, got {list(module)}; pass one, such as runner.module[module_id]")
    return as_rl_module(module)
