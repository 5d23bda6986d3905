"""PyTorch modules, named as in RLlib, and the default networks."""

from typing import TYPE_CHECKING

from fastmarl.core.objects.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.core.modules.base import RLModule as RLModule
    from fastmarl.core.modules.base import as_rl_module as as_rl_module
    from fastmarl.core.modules.default import DefaultRLModule as DefaultRLModule
    from fastmarl.core.modules.epsilon_greedy import EpsilonGreedyModelConfig as EpsilonGreedyModelConfig
    from fastmarl.core.modules.epsilon_greedy import EpsilonGreedyRLModule as EpsilonGreedyRLModule
    from fastmarl.core.modules.model_config import DefaultModelConfig as DefaultModelConfig
    from fastmarl.core.modules.multi import MultiRLModule as MultiRLModule
    from fastmarl.core.modules.specs import MultiRLModuleSpec as MultiRLModuleSpec
    from fastmarl.core.modules.specs import RLModuleSpec as RLModuleSpec

__all__, __getattr__ = imported_when_used(__name__)
