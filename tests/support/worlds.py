"""Random worlds written down as data, tick by tick, and the envs and policies that replay them.

Every observation is filled with a serial number that occurs once in the world, every reward is a multiple of 1/8 (so
sums are exact in any order), and policies are functions of the serial number: whatever ends up in a wrong place shows.
"""

import random
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

SERIALS_PER_ENV = 1 << 20
SERIALS_PER_RESET = 1 << 10
AGENT_IDS: tuple[Hashable, ...] = ("a", "b", 0, 1, 17, ("team", 1), ("team", 2), frozenset({3}), "1", -5)
OBS_KINDS = ("vector32", "vector64", "image", "nested")
ACTION_KINDS = ("discrete", "multi", "box")
SOME_END = ((True, False), (False, True), (True, True))
"""(terminated, truncated)"""


@dataclass(frozen=True)
class Tick:
    """The result of one reset() or step(); observations are serial numbers local to the script."""

    obs: dict[Hashable, int]
    rewards: dict[Hashable, Any]
    terminateds: dict[Hashable, Any]
    truncateds: dict[Hashable, Any]
    infos: dict[Hashable, dict]

    @property
    def is_last(self) -> bool:
        return bool(self.terminateds.get("__all__") or self.truncateds.get("__all__"))


@dataclass(frozen=True)
class Call:
    """Keyword arguments of one sample(); all None means the config decides."""

    num_timesteps: int | None = None
    num_episodes: int | None = None
    force_reset: bool = False

    @property
    def kwargs(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True, kw_only=True)
class World:
    """Scripts and options. `scripts[env][k % len]` is what `env` says from its k-th reset on; tick 0 is the reset."""

    agents: tuple[Hashable, ...]
    module_of: Mapping[Hashable, str]
    scripts: tuple[tuple[tuple[Tick, ...], ...], ...]
    calls: tuple[Call, ...]
    obs_kinds: Mapping[str, str]
    action_kinds: Mapping[str, str]
    declared: bool = True
    reuse_arrays: bool = False
    keep_float64: bool = True
    lookback: int = 1
    late_rewards: str = "error"
    respawn: bool = False
    count_steps_by: str = "env_steps"
    batch_mode: str = "truncate_episodes"
    fragment: int = 7
    window: int = 100
    num_splits: int = 1
    """Parts of the envs that take turns: env i is in part i % num_splits."""

    @property
    def num_envs(self) -> int:
        return len(self.scripts)

    @property
    def keeps_everything(self) -> bool:
        """No call throws a running episode away."""
        return self.batch_mode == "truncate_episodes" and not any(c.num_episodes or c.force_reset for c in self.calls)

    def script(self, env: int, resets: int) -> tuple[Tick, ...]:
        return self.scripts[env][resets % len(self.scripts[env])]

    def serial(self, env: int, resets: int, local: int) -> int:
        return (env + 1) * SERIALS_PER_ENV + resets * SERIALS_PER_RESET + local


def action_of(kind: str, serial: int) -> list[int] | int:
    """Return the policy's action for the observation with this serial number."""
    return {"discrete": serial % 5, "multi": [serial % 3, serial % 7], "box": [serial % 11, -(serial % 13)]}[kind]


class _ScriptWriter:
    """One episode: a little state machine for each agent, driven by `rng`."""

    def __init__(self, rng: random.Random, world: dict[str, Any]):
        self.rng = rng
        self.agents = list(world["agents"])
        self.rewards_when_dead = world["late_rewards"] != "error"
        self.respawn_chance = rng.choice((0.1, 0.4)) if world["respawn"] else 0.0
        self.style = rng.choice(("dense", "dense", "dense", "turns", "sparse"))
        self.shuffled = rng.random() < 0.5
        self.join_chance = rng.choice((0.1, 0.5, 1.0, 1.0))
        self.death_chance = rng.choice((0.0, 0.0, 0.05, 0.3))
        self.quiet_chance = rng.choice((0.0, 0.0, 0.2))
        self.info_chance = rng.choice((0.0, 0.1, 0.6))
        self.must_start = world["count_steps_by"] == "agent_steps"
        self.state = dict.fromkeys(self.agents, "absent")
        self.serial = 0
        self.t = 0

    def write(self, length: int) -> tuple[Tick, ...]:
        return (self._reset(), *(self._tick(last=t == length) for t in range(1, length + 1)))

    def _reset(self) -> Tick:
        chance = 0.0 if self.rng.random() < 0.1 else self.join_chance
        joining = [agent for agent in self.agents if self.rng.random() < chance]
        if self.must_start and not joining:
            joining = [self.agents[0]]
        self.tick = Tick({}, {}, {}, {}, {})
        for agent in self._in_some_order(joining):
            self._observe(agent)
            self.state[agent] = "live"
        self._inform()
        return self.tick

    def _tick(self, last: bool) -> Tick:
        self.t += 1
        self.tick = Tick({}, {}, {}, {}, {})
        quiet = self.rng.random() < self.quiet_chance
        for agent in self._in_some_order(self.agents):
            wanted = not quiet and self._turn_of(agent)
            getattr(self, f"_{self.state[agent]}")(agent, wanted, last)
        self._flag_all(last)
        self._inform()
        return self.tick

    def _in_some_order(self, agents: list[Hashable]) -> list[Hashable]:
        return self.rng.sample(agents, len(agents)) if self.shuffled else agents

    def _turn_of(self, agent: Hashable) -> bool:
        if self.style == "dense":
            return True
        if self.style == "turns":
            return self.agents[self.t % len(self.agents)] == agent
        return self.rng.random() < 0.4

    def _absent(self, agent: Hashable, wanted: bool, last: bool) -> None:
        self._pay(agent, 0.15)
        if wanted and self.rng.random() < self.join_chance:
            self._observe(agent)
            self.state[agent] = "live"
            if self.rng.random() < 0.05:
                self._finish(agent)
                self.state[agent] = "gone"
        elif self.rng.random() < 0.02:
            self._finish(agent)
            self.state[agent] = "gone"

    def _live(self, agent: Hashable, wanted: bool, last: bool) -> None:
        dies = self.rng.random() < (0.3 if last else self.death_chance)
        if wanted if not dies else self.rng.random() < 0.6:
            self._observe(agent)
        self._pay(agent, 0.7 if wanted else 0.4)
        if dies:
            self._finish(agent)
            self.state[agent] = "finished"
        elif self.rng.random() < 0.3:
            self.tick.terminateds[agent] = self.rng.choice((False, np.False_))
            self.tick.truncateds[agent] = False

    def _finished(self, agent: Hashable, wanted: bool, last: bool) -> None:
        if self.rewards_when_dead:
            self._pay(agent, 0.2)
        if self.rng.random() < self.respawn_chance:
            self._observe(agent)
            if self.rng.random() < 0.1:
                self._finish(agent)
            else:
                self.state[agent] = "live"
        elif self.rng.random() < 0.2:
            self._finish(agent)

    def _gone(self, agent: Hashable, wanted: bool, last: bool) -> None:
        """Ended before it had a trajectory: the env does not speak of it again."""

    def _observe(self, agent: Hashable) -> None:
        self.tick.obs[agent] = self.serial
        self.serial += 1

    def _pay(self, agent: Hashable, chance: float) -> None:
        if self.rng.random() < chance:
            self.tick.rewards[agent] = _reward(self.rng)

    def _finish(self, agent: Hashable) -> None:
        terminated, truncated = self.rng.choice(SOME_END)
        self.tick.terminateds[agent] = np.bool_(terminated) if self.rng.random() < 0.3 else terminated
        if truncated or self.rng.random() < 0.5:
            self.tick.truncateds[agent] = truncated

    def _flag_all(self, last: bool) -> None:
        terminated, truncated = self.rng.choice(SOME_END) if last else (False, False)
        self.tick.terminateds["__all__"] = terminated
        if truncated or self.rng.random() < 0.8:
            self.tick.truncateds["__all__"] = truncated

    def _inform(self) -> None:
        observing = [agent for agent in self.tick.obs if self.rng.random() < self.info_chance]
        others = [a for a in self.agents if a not in self.tick.obs and self.rng.random() < self.info_chance / 4]
        for agent in observing + others:
            self.tick.infos[agent] = {"t": self.t, "agent": agent}
        if self.rng.random() < self.info_chance:
            self.tick.infos["__common__"] = {"t": self.t}


def _reward(rng: random.Random) -> Any:
    eighths = rng.randint(-16, 16)
    kinds: list[Any] = [float, float, np.float32, np.float64, np.float64]
    if eighths % 8 == 0:
        kinds += [int, np.int64]
    return rng.choice(kinds)(eighths / 8)


def _calls(rng: random.Random, num_envs: int, most: int) -> tuple[Call, ...]:
    budget = rng.choice((20, 50, 100)) * (1 if num_envs == 1 else 2)
    drops = rng.random() < 0.25
    one_length = rng.choice((1, 2, 3, 7, 20, 50, None))
    calls: list[Call] = []
    while budget > 0 and len(calls) < most:
        length = one_length or rng.randint(1, 50)
        if drops and rng.random() < 0.4:
            if rng.random() < 0.5:
                calls.append(Call(num_timesteps=length, force_reset=True))
            else:
                calls.append(Call(num_episodes=rng.randint(1, 4)))
                length = 30
        elif rng.random() < 0.05:
            calls.append(Call())
        else:
            calls.append(Call(num_timesteps=length))
        budget -= length
    return tuple(calls)


@contextmanager
def world_of(seed: int) -> Iterator[World]:
    """Return the world of `seed`; errors inside get a note of the seed."""
    try:
        yield make_world(random.Random(seed))
    except Exception as error:
        error.add_note(f"world: make_world(random.Random({seed}))")
        raise


def make_world(rng: random.Random, small: bool = False) -> World:
    """A world made from `rng` alone: `random.Random(seed)`, or hypothesis' `randoms()`, which shrinks small ones."""
    options: dict[str, Any] = {
        "agents": tuple(rng.sample(AGENT_IDS, rng.randint(1, 3 if small else 6))),
        "lookback": rng.choice((0, 1, 1, 2, 5)),
        "late_rewards": rng.choice(("error", "accumulate", "drop")),
        "respawn": rng.random() < 0.3,
        "count_steps_by": rng.choice(("env_steps", "env_steps", "agent_steps")),
        "batch_mode": "complete_episodes" if rng.random() < 0.05 else "truncate_episodes",
        "fragment": rng.randint(1, 12),
        "window": rng.choice((1, 3, 100)),
        "declared": rng.random() < 0.7,
        "reuse_arrays": rng.random() < 0.5,
    }
    num_envs = 1 if small else rng.choice((1, 1, 2, 3))
    lengths = (1, 2, 3, 5) if small else rng.choice(((1, 2, 3), (2, 5, 9), (12, 20), (40,)))
    scripts = tuple(
        tuple(_ScriptWriter(rng, options).write(rng.choice(lengths)) for _ in range(1 if small else rng.randint(1, 3)))
        for _ in range(num_envs)
    )
    modules = ("left",) if rng.random() < 0.2 else ("left", "right")
    return World(
        scripts=scripts,
        module_of={agent: rng.choice(modules) for agent in options["agents"]},
        calls=_calls(rng, num_envs, most=5 if small else 40),
        obs_kinds={module: rng.choice(OBS_KINDS) for module in modules},
        action_kinds={module: rng.choice(ACTION_KINDS) for module in modules},
        keep_float64=rng.random() < 0.5,
        **options,
    )
