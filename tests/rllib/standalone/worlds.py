"""Random envs whose numbers are exact, so that two runners agree exactly, in any order of rows.

Observations and rewards are multiples of 1/8: sums and products of a few of them are exact in float32. An episode
follows from the rules, the env's place and the number of the episode, and not from seeds; one that ends before its
first step does not count, as runners differ in when they reset.
"""

import zlib
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rllib.differential import tape
from rllib.differential.worlds import REWARDS, Rules, World

Agent = Hashable
Who = tuple[int, int]
"""(env, number of the episode)"""


@dataclass(frozen=True, kw_only=True)
class ExactRules(Rules):
    """Rules, and how the episodes of several envs go together."""

    in_step: bool = True
    """All episodes have `max_steps`, so that envs are reset together; else one is as long as chance will have it."""


class Eighths(np.random.Generator):
    """Draws no other numbers than multiples of 1/8."""

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return np.round(super().uniform(low, high, size) * 8) / 8


class ExactWorld(World):
    """With `config["holds_back"]`, rewards before an agent's first action come when it has acted.

    RLlib drops such rewards, and here they are part of the first transition (docs/episodes.md): so RLlib's runner gets
    an env that says the same in RLlib's terms.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.given: ExactRules = config["rules"]
        self.holds_back: bool = config["holds_back"]
        self.episode = self.t = 0
        self.known: list[Agent] = []  # before the step
        self.early: dict[Agent, float] = {}

    @property
    def who(self) -> Who:
        return self.number, self.episode

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.episode += self.t > 0
        self.rng = Eighths(np.random.PCG64([self.given.seed, *self.who]))
        if not self.given.in_step:
            self.rules = replace(self.given, max_steps=int(self.rng.integers(self.given.max_steps)) + 1)
        self.early = {}
        return super().reset()

    def step(self, actions: dict[Agent, Any]) -> tuple[dict, dict, dict, dict, dict]:
        absent = [agent for agent, state in self.state.items() if state in ("absent", "gone")]
        self.known = [agent for agent in self.state if agent not in absent]
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        if self.holds_back:
            held = {agent: float(rewards.pop(agent)) for agent in absent if agent in rewards}
            for agent in self.early.keys() - {*absent}:
                rewards[agent] = float(rewards.get(agent, 0.0)) + self.early.pop(agent)
            for agent, pay in held.items():
                self.early[agent] = self.early.get(agent, 0.0) + pay
        return obs, rewards, terminateds, truncateds, infos

    def _take(self, actions: dict[Agent, Any]) -> None:
        values = {repr(agent): _numbers(action) for agent, action in actions.items()}
        entry = tuple((agent, values[agent]) for agent in sorted(values))
        tape.note("env", "step", self.who, self.t, entry)
        self.mix = zlib.crc32(repr(entry).encode(), self.mix)

    def _fate(self, agent: Agent) -> tuple[bool, bool]:
        """Where envs are reset together, the last agent alive lives on."""
        fate = super()._fate(agent)
        others = {self.state[other] for other in self.known if other != agent}
        is_needed = self.given.in_step and not self.last and not {"acting", "waiting"} & others
        return (False, False) if is_needed else fate

    def _pay(self, agent: Agent) -> None:
        self.mix = zlib.crc32(repr(agent).encode(), self.mix)
        kind = self.rules.rewards[self.mix % len(self.rules.rewards)]
        self.tick.rewards[agent] = REWARDS[kind]((self.mix % 64 - 32) / 4)


def _numbers(action: Any) -> Any:
    """The action in Python's floats, whatever its type."""
    return np.asarray(action, np.float64).tolist()
