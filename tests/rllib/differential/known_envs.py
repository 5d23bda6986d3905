"""Envs of others, which write down the actions that they get."""

from typing import Any

from magent2.environments import battle_v4
from mpe2 import simple_speaker_listener_v4, simple_spread_v3, simple_tag_v3
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole, MultiAgentPendulum
from rllib.differential import tape


class _Noting:
    """Before an RLlib env among the bases."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for i, agent in enumerate(self.possible_agents):
            self.get_action_space(agent).seed(i)

    def reset(self, **kwargs: Any) -> Any:
        tape.note("env", "reset", tape.freeze(kwargs))
        return super().reset(**kwargs)

    def step(self, actions: dict) -> Any:
        tape.note("env", "step", tape.freeze(actions))
        return super().step(actions)


class CartPoles(_Noting, MultiAgentCartPole):
    """`num_agents` agents, each with its own pole; ids are 0, 1, ..."""


class Pendulums(_Noting, MultiAgentPendulum):
    """Pendulums: bounded Box actions, ends by truncation."""


class Spread(_Noting, ParallelPettingZooEnv):
    """Three agents and three landmarks."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(simple_spread_v3.parallel_env(max_cycles=9, **config))


class Tag(_Noting, ParallelPettingZooEnv):
    """Agents with different observation spaces."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(simple_tag_v3.parallel_env(max_cycles=9, **config))


class SpeakerListener(_Noting, ParallelPettingZooEnv):
    """Agents with different observation and action spaces."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(simple_speaker_listener_v4.parallel_env(max_cycles=9, **config))


class Battle(_Noting, ParallelPettingZooEnv):
    """Two teams on a grid; the dead leave."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(battle_v4.parallel_env(map_size=12, max_cycles=14, **config))
