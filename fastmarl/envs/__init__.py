"""Environments: base classes, adapters for environments of other packages, and compiled environments."""

from typing import TYPE_CHECKING

from fastmarl.core.objects.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.core.envs.aec import AECPettingZooEnv as AECPettingZooEnv
    from fastmarl.core.envs.arrays import ArrayEnv as ArrayEnv
    from fastmarl.core.envs.arrays import GroupArrays as GroupArrays
    from fastmarl.core.envs.arrays import StepArrays as StepArrays
    from fastmarl.core.envs.base import MultiAgentEnv as MultiAgentEnv
    from fastmarl.core.envs.context import EnvContext as EnvContext
    from fastmarl.core.envs.gymnasium_joint import DictGymnasiumEnv as DictGymnasiumEnv
    from fastmarl.core.envs.gymnasium_joint import JointGymnasiumEnv as JointGymnasiumEnv
    from fastmarl.core.envs.gymnasium_joint import TupleGymnasiumEnv as TupleGymnasiumEnv
    from fastmarl.core.envs.gymnasium_vector import VectorGymnasiumEnv as VectorGymnasiumEnv
    from fastmarl.core.envs.gymnasium_wrapped import WrappedMultiAgentEnv as WrappedMultiAgentEnv
    from fastmarl.core.envs.openspiel import OpenSpielEnv as OpenSpielEnv
    from fastmarl.core.envs.pettingzoo import ParallelPettingZooEnv as ParallelPettingZooEnv
    from fastmarl.core.envs.pufferlib import PufferLibEnv as PufferLibEnv
    from fastmarl.core.envs.registry import register_env as register_env
    from fastmarl.core.envs.remote import RemoteEnv as RemoteEnv
    from fastmarl.core.envs.time_limit import time_limited as time_limited
    from fastmarl.core.envs.vmas import VmasEnv as VmasEnv
    from fastmarl.envs.cart_pole import CartPole as CartPole
    from fastmarl.envs.connect_four import ConnectFour as ConnectFour
    from fastmarl.envs.gridworld import GridWorld as GridWorld
    from fastmarl.envs.lbforaging import LevelBasedForaging as LevelBasedForaging
    from fastmarl.envs.rware import Warehouse as Warehouse
    from fastmarl.envs.simple_spread import SimpleSpread as SimpleSpread
    from fastmarl.envs.simple_tag import SimpleTag as SimpleTag

__all__, __getattr__ = imported_when_used(__name__)
