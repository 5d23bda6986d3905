"""Checks for custom environments before training, and small environments for tests."""

from fastmarl.testing.check import check_env as check_env
from fastmarl.testing.kit import ClockEnv as ClockEnv
from fastmarl.testing.kit import CountingEnv as CountingEnv
from fastmarl.testing.kit import DyingAgentsEnv as DyingAgentsEnv
from fastmarl.testing.kit import ReusingEnv as ReusingEnv
from fastmarl.testing.kit import ScriptedEnv as ScriptedEnv
from fastmarl.testing.kit import TurnBasedEnv as TurnBasedEnv
