"""Connectors turn observations and rewards into a module's input. See docs/connectors.md."""

from fastmarl.core.connectors.base import Connector, Rows
from fastmarl.core.connectors.env_to_module import EnvToModule
from fastmarl.core.connectors.flatten_observations import FlattenObservations
from fastmarl.core.connectors.frame_stacking import FrameStacking, stacked
from fastmarl.core.connectors.mean_std_filter import MeanStdFilter
from fastmarl.core.connectors.prev_actions_prev_rewards import PrevActionsPrevRewards

__all__ = [
    "Connector",
    "EnvToModule",
    "FlattenObservations",
    "FrameStacking",
    "MeanStdFilter",
    "PrevActionsPrevRewards",
    "Rows",
    "stacked",
]
