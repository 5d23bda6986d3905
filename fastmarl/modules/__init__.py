"""What agents act with: torch modules under RLlib's names, and the default nets."""

from fastmarl.modules.base import RLModule, as_rl_module
from fastmarl.modules.default import DefaultRLModule
from fastmarl.modules.model_config import DefaultModelConfig
from fastmarl.modules.multi import MultiRLModule
from fastmarl.modules.specs import MultiRLModuleSpec, RLModuleSpec

__all__ = [
    "DefaultModelConfig",
    "DefaultRLModule",
    "MultiRLModule",
    "MultiRLModuleSpec",
    "RLModule",
    "RLModuleSpec",
    "as_rl_module",
]
