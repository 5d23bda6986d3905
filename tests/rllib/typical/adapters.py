"""Envs of others for these configs, and the change of a mapping function between calls."""

from dataclasses import dataclass
from typing import Any

from mpe2 import simple_spread_v3
from pettingzoo.classic.rps import rps
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
from rllib.typical.mappings import against_league


class AgentsInACycle(PettingZooEnv):
    """simple_spread by PettingZoo's AEC API."""

    def __init__(self, config: Any):
        super().__init__(simple_spread_v3.env(max_cycles=6))


class RockPaperScissors(ParallelPettingZooEnv):
    """Two players who see the other's last action."""

    def __init__(self, config: Any):
        super().__init__(rps.parallel_env(max_cycles=9))


@dataclass(frozen=True)
class NewMapping:
    """The league has grown: another mapping function, given as callbacks give it after an iteration."""

    opponents: list[str]

    def on(self, runner: Any) -> None:
        runner.config._is_frozen = False
        runner.config.multi_agent(policy_mapping_fn=against_league(self.opponents))
