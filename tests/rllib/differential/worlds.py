"""A random multi-agent env for RLlib: agents join late, wait, take turns, die, and get rewards at odd times.

What it does follows from its rules, the seeds given to reset(), and the bytes of the actions that it gets; an action
that differs in one bit changes the rewards. It keeps away from what RLlib rejects: data for dead agents, an answer to
an action without a reward, a truncation without an observation.
"""

import zlib
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from rllib.differential import spaces, tape

AgentID = Hashable

REWARDS: dict[str, Any] = {
    "float": float,
    "float32": np.float32,
    "float64": np.float64,
    "int": lambda value: int(4 * value),
    "int64": lambda value: np.int64(4 * value),
    "array": np.array,
    "zero": lambda value: 0,
    "minus_zero": lambda value: -0.0 if value < 0 else float(value),
    "none": lambda value: None if value < 0 else float(value),
}


MIXED_SUMS = ("int", "int64", "array")
"""Rewards whose sums with Python's 0.0 are of another type."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a world. Chances are per agent and step."""

    agents: tuple[AgentID, ...]
    group_of: dict[AgentID, str]
    obs_kinds: dict[str, str] = field(default_factory=lambda: {"p0": "f32", "p1": "f32"})
    action_kinds: dict[str, str] = field(default_factory=lambda: {"p0": "discrete", "p1": "discrete"})
    seed: int = 0
    max_steps: int = 12
    style: str = "together"
    at_reset: float = 1.0
    joins: float = 1.0
    dies: float = 0.0
    last_words: float = 0.5
    """Chance that a terminated agent is observed once more."""
    quiet: float = 0.0
    """Chance that nobody is observed in a step."""
    stillborn: float = 0.0
    """Chance that an agent is done before it has acted."""
    returns: float = 0.0
    """Chance that such an agent comes back."""
    end: str = "terminated"
    flags: str = "sparse"
    numpy_flags: bool = False
    truncated_has_all: bool = True
    splits: bool = False
    """The env goes on when all agents so far are dead."""
    shuffled: bool = False
    rewards: tuple[str, ...] = ("float",)
    pays_waiting: float = 0.0
    pays_absent: float = 0.0
    infos: str = "none"
    common_info: bool = False
    reuses_arrays: bool = False
    grabs_actions: bool = False
    """The env writes into the arrays of actions that it gets."""
    failing_steps: tuple[int, ...] = ()
    failing_resets: tuple[int, ...] = ()
    """Which calls raise, counted over all envs of the run."""


@dataclass
class Tick:
    """The results of one step()."""

    obs: dict[AgentID, Any] = field(default_factory=dict)
    rewards: dict[AgentID, Any] = field(default_factory=dict)
    terminateds: dict[AgentID, Any] = field(default_factory=dict)
    truncateds: dict[AgentID, Any] = field(default_factory=dict)
    infos: dict[AgentID, Any] = field(default_factory=dict)


class World(MultiAgentEnv):
    """See the module. `config["rules"]` are its Rules."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.rules: Rules = config["rules"]
        self.agents = self.possible_agents = [*self.rules.agents]
        self.observation_spaces = {a: spaces.OBSERVATIONS[self._kind(a)]() for a in self.agents}
        self.action_spaces = {
            agent: spaces.ACTIONS[self.rules.action_kinds[self.rules.group_of[agent]]]() for agent in self.agents
        }
        self.number = tape.count("env", "made")
        for i, space in enumerate(self.action_spaces.values()):
            space.seed(100 * self.number + i)
        self.rng = np.random.default_rng([self.rules.seed, self.number])
        self.arrays: dict[AgentID, Any] = {}
        self.shared_info: dict[str, Any] = {}
        tape.note("env", "made", self.number)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        tape.note("env", "reset", self.number, seed, options)
        if tape.count("env", "reset") in self.rules.failing_resets:
            raise ValueError("this world fails in reset()")
        if seed is not None:
            self.rng = np.random.default_rng([self.rules.seed, seed])
        self.t = 0
        self.mix = 0
        self.state: dict[AgentID, str] = dict.fromkeys(self.agents, "absent")
        self.tick = Tick()
        agents = self._in_order(self.agents)
        # At least one: RLlib takes an empty reset for none at all (10).
        present = [agent for agent in agents if self._chance(self.rules.at_reset)] or agents[:1]
        for agent in present:
            self._observe(agent)
            self.state[agent] = "acting"
        self._inform()
        return self.tick.obs, self.tick.infos

    def step(self, actions: dict[AgentID, Any]) -> tuple[dict, dict, dict, dict, dict]:
        self._take(actions)
        if tape.count("env", "step") in self.rules.failing_steps:
            raise ValueError("this world fails in step()")
        self.t += 1
        self.tick = Tick()
        known = [agent for agent, state in self.state.items() if state not in ("absent", "gone")]
        self.last = self.t >= self.rules.max_steps
        self.quiet = self._chance(self.rules.quiet) or (self.last and not known)
        for agent in self._in_order(self.agents):
            getattr(self, f"_{self.state[agent]}")(agent, bool(known))
        self._end(known)
        self._inform()
        return self._answer()

    def _take(self, actions: dict[AgentID, Any]) -> None:
        frozen = tape.freeze(actions)
        tape.note("env", "step", self.number, frozen)
        self.mix = zlib.crc32(repr(frozen).encode(), self.mix)
        if self.rules.grabs_actions:
            for action in actions.values():
                if isinstance(action, np.ndarray):
                    action[...] = 0

    def _absent(self, agent: AgentID, anybody_known: bool) -> None:
        stillborn = anybody_known and self._chance(self.rules.stillborn)
        if not self.quiet and self._chance(self.rules.joins):
            self._observe(agent)
            self.state[agent] = "gone" if stillborn else "acting"
        elif stillborn:
            self.state[agent] = "gone"
        if self._chance(self.rules.pays_absent):
            self._pay(agent)
        if stillborn:
            self.tick.terminateds[agent] = True

    def _acting(self, agent: AgentID, _: bool) -> None:
        self._live(agent, pays=1.0)

    def _waiting(self, agent: AgentID, _: bool) -> None:
        self._live(agent, pays=self.rules.pays_waiting)

    def _live(self, agent: AgentID, pays: float) -> None:
        """An agent that owes or awaits an answer. `pays` is the chance of a reward if it is observed."""
        terminated, truncated = self._fate(agent)
        observed = truncated or (not self.quiet and self._has_turn(agent))
        if terminated and not truncated:
            observed = self._chance(self.rules.last_words)
        if self.last and self.rules.end != "terminated":
            observed = True  # RLlib wants an observation of everybody whom the end truncates
        if observed:
            self._observe(agent)
        if self._chance(pays if observed else self.rules.pays_waiting):
            self._pay(agent)
        if terminated:
            self.tick.terminateds[agent] = True
        if truncated:
            self.tick.truncateds[agent] = True
        self.state[agent] = "dead" if terminated or truncated else "acting" if observed else "waiting"

    def _fate(self, agent: AgentID) -> tuple[bool, bool]:
        """(terminated, truncated) of its own in this step."""
        if self.last and self.rules.end == "truncated_each":
            return False, True
        if self.rules.flags == "only_all" or not self._chance(self.rules.dies):
            return False, False
        return ((True, False), (False, True), (True, True))[self.rng.integers(3)]

    def _dead(self, agent: AgentID, _: bool) -> None:
        if self.rules.flags == "repeated":
            self.tick.terminateds[agent] = True

    def _gone(self, agent: AgentID, _: bool) -> None:
        """It was done before it acted: RLlib does not know it."""
        if not self.quiet and self._chance(self.rules.returns):
            self._observe(agent)
            self.state[agent] = "acting"

    def _has_turn(self, agent: AgentID) -> bool:
        if self.rules.style == "turns":
            return self.agents[self.t % len(self.agents)] == agent
        return self.rules.style == "together" or self._chance(0.4)

    def _end(self, known: list[AgentID]) -> None:
        """Set `__all__`, and the flags of agents that go on."""
        over = bool(known) and all(self.state[agent] == "dead" for agent in known)
        if over and self.rules.splits and not self.last:
            self._forget()
            over = False
        tick, end = self.tick, self.rules.end
        if self.rules.flags == "full":
            flagged = tick.terminateds.keys() | tick.truncateds.keys()
            named = [a for a, state in self.state.items() if state in ("acting", "waiting") or a in flagged]
            tick.terminateds = {agent: tick.terminateds.get(agent, False) for agent in named}
            tick.truncateds = {agent: tick.truncateds.get(agent, False) for agent in named}
        tick.terminateds["__all__"] = over or (self.last and end in ("terminated", "both"))
        truncated = self.last and end in ("truncated", "truncated_each", "both")
        if truncated or self.rules.truncated_has_all:
            tick.truncateds["__all__"] = truncated

    def _forget(self) -> None:
        """RLlib begins a new episode by itself: who has joined in this very step has to join again."""
        for agent, state in self.state.items():
            self.state[agent] = "gone" if state in ("dead", "gone") else "absent"

    def _observe(self, agent: AgentID) -> None:
        kind = self._kind(agent)
        value = spaces.draw(kind, self.observation_spaces[agent], self.rng)
        if self.rules.reuses_arrays and agent in self.arrays:
            value = spaces.overwrite(self.arrays[agent], value)
        self.arrays[agent] = value
        self.tick.obs[agent] = value

    def _pay(self, agent: AgentID) -> None:
        self.mix = zlib.crc32(repr(agent).encode(), self.mix)
        kind = self.rules.rewards[self.mix % len(self.rules.rewards)]
        self.tick.rewards[agent] = REWARDS[kind]((self.mix % 64 - 32) / 10)

    def _inform(self) -> None:
        """Infos of agents that are not dead, in the way of the rules."""
        kind = self.rules.infos
        if self.rules.common_info:
            self.tick.infos["__common__"] = {"t": self.t}
        for agent, state in self.state.items():
            informed = agent in self.tick.obs or (state in ("absent", "waiting") and self._chance(0.2))
            if kind == "none" or not informed or (kind == "some" and self._chance(0.5)):
                continue
            self.tick.infos[agent] = self._info(kind)

    def _info(self, kind: str) -> dict[str, Any]:
        if kind == "arrays":
            return {"position": self.rng.random(2), "nested": {"t": self.t, "name": "x"}}
        if kind == "reused":
            self.shared_info["t"] = self.t
            return self.shared_info
        return {} if kind == "empty" else {"t": self.t, "mix": self.mix}

    def _answer(self) -> tuple[dict, dict, dict, dict, dict]:
        tick = self.tick
        if self.rules.numpy_flags:
            tick.terminateds = {agent: np.bool_(flag) for agent, flag in tick.terminateds.items()}
            tick.truncateds = {agent: np.bool_(flag) for agent, flag in tick.truncateds.items()}
        parts = (tick.obs, tick.rewards, tick.terminateds, tick.truncateds, tick.infos)
        return tuple({key: part[key] for key in self._in_order([*part])} for part in parts)

    def _in_order(self, keys: list) -> list:
        return [keys[i] for i in self.rng.permutation(len(keys))] if self.rules.shuffled else keys

    def _chance(self, chance: float) -> bool:
        return chance >= 1.0 or (chance > 0.0 and self.rng.random() < chance)

    def _kind(self, agent: AgentID) -> str:
        return self.rules.obs_kinds[self.rules.group_of[agent]]
