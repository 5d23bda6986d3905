"""PyTorch modules under RLlib's names, and the default networks."""

from fastmarl.core.modules.base import RLModule, as_rl_module
from fastmarl.core.modules.default import DefaultRLModule
from fastmarl.core.modules.model_config import DefaultModelConfig
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.core.modules.specs import MultiRLModuleSpec, RLModuleSpec

__all__ = [
    "DefaultModelConfig",
    "DefaultRLModule",
    "MultiRLModule",
    "MultiRLModuleSpec",
    "RLModule",
    "RLModuleSpec",
    "as_rl_module",
]
