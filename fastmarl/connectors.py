"""Connectors, which transform module inputs, outputs and actions. See docs/connectors.md."""

from typing import TYPE_CHECKING

from fastmarl.core.objects.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.core.connectors.agent_indicator import AgentIndicator as AgentIndicator
    from fastmarl.core.connectors.base import EnvToModuleConnector as EnvToModuleConnector
    from fastmarl.core.connectors.base import GetActions as GetActions
    from fastmarl.core.connectors.base import ModuleToEnvConnector as ModuleToEnvConnector
    from fastmarl.core.connectors.base import NormalizeAndClipActions as NormalizeAndClipActions
    from fastmarl.core.connectors.base import Rows as Rows
    from fastmarl.core.connectors.env_to_module import EnvToModule as EnvToModule
    from fastmarl.core.connectors.flatten_observations import FlattenObservations as FlattenObservations
    from fastmarl.core.connectors.frame_stacking import FrameStacking as FrameStacking
    from fastmarl.core.connectors.frame_stacking import stack_frames as stack_frames
    from fastmarl.core.connectors.mean_std_filter import MeanStdFilter as MeanStdFilter
    from fastmarl.core.connectors.prev_actions_prev_rewards import PrevActionsPrevRewards as PrevActionsPrevRewards

__all__, __getattr__ = imported_when_used(__name__)
