"""Between envs and modules: what is made of observations and rewards. See docs/connectors.md."""

from fastmarl.connectors.base import Connector as Connector
from fastmarl.connectors.base import Rows as Rows
from fastmarl.connectors.env_to_module import EnvToModule as EnvToModule
from fastmarl.connectors.flatten_observations import FlattenObservations as FlattenObservations
from fastmarl.connectors.frame_stacking import FrameStacking as FrameStacking
from fastmarl.connectors.frame_stacking import stacked as stacked
from fastmarl.connectors.mean_std_filter import MeanStdFilter as MeanStdFilter
from fastmarl.connectors.prev_actions_prev_rewards import PrevActionsPrevRewards as PrevActionsPrevRewards
