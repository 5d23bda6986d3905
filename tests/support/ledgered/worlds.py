"""Worlds on which every algorithm is tried, each with one thing that is easily forgotten."""

import enum
from typing import Any

import gymnasium as gym
import numpy as np

from support.ledgered.base import TERMINATED, TRUNCATED, Ledgered

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
VECTOR = Box(-1, 1, (3,), np.float32)
WORLDS: dict[str, type[Ledgered]] = {}


def world(name: str) -> Any:
    """Return a decorator that enters a class in WORLDS."""

    def enter(cls: type[Ledgered]) -> type[Ledgered]:
        WORLDS[name] = cls
        return cls

    return enter


def define(name: str, **attributes: Any) -> None:
    """Enter a world that differs from `Ledgered` in attributes alone."""
    WORLDS[name] = type("".join(word.title() for word in name.split()), (Ledgered,), attributes)


# Who acts when.

define("all agents act", end=TERMINATED)
define("one agent", ids=("a",))
define("one step", length=1)
define("one step, limited", length=1, end=TRUNCATED)
define("time limit", length=10, end=TRUNCATED)
define("longer than a run", length=1000)
define("cut by an option", length=1000, limit=30, options=("--max-steps", "30"))


@world("two take turns")
class Turns(Ledgered):
    """One agent observes at a time; all are rewarded in each step, and at the end all observe."""

    length = 11

    def observing(self, t):
        return self.ids if t == self.length_now() else [self.ids[t % len(self.ids)]]

    def rewarded(self, t):
        return self.ids


@world("four take turns")
class FourTurns(Turns):
    ids = ("a", "b", "c", "d")
    length = 18
    end = TRUNCATED


@world("turns without last observations")
class ShortTurns(Turns):
    end = TRUNCATED

    def observing(self, t):
        return [self.ids[t % len(self.ids)]]


@world("masked turns")
class MaskedTurns(Turns):
    masks = "infos"


@world("joins")
class Joins(Ledgered):
    """Agent b joins at 4, after a reward; c at the end, too late for an action."""

    ids = ("a", "b", "c")

    def observing(self, t):
        return self.ids if t == self.length else ["a", "b"] if t >= 4 else ["a"]

    def rewarded(self, t):
        return ["a", "b"] if t >= 3 else ["a"]


class Leaves(Ledgered):
    """Agent b ends at 4."""

    length = 9
    how = TERMINATED

    def observing(self, t):
        return ["a", "b"] if t <= 4 else ["a"]

    def ending(self, t):
        return {"b": self.how} if t == 4 else {}


WORLDS["death"] = Leaves


@world("one agent's limit")
class OneLimit(Leaves):
    how = TRUNCATED


@world("death before a limit")
class DeathAndLimit(Leaves):
    end = TRUNCATED


@world("rewards after death, dropped")
class LateRewards(Leaves):
    options = ("--late-rewards", "drop")

    def rewarded(self, t):
        return self.ids


@world("respawn")
class Respawn(Leaves):
    """Agent b ends at 4 and is back at 6."""

    options = ("--respawn",)
    length = 12

    def observing(self, t):
        return ["a", "b"] if t <= 4 or t >= 6 else ["a"]

    def rewarded(self, t):
        return ["a"] if t == 6 else self.observing(t)


@world("rewarded at respawn")
class RewardedRespawn(Respawn):
    """The first observation of the new life comes with a reward."""

    def rewarded(self, t):
        return self.observing(t)


@world("the next generation")
class Generations(Ledgered):
    """At 5, agents c and d replace a and b, whose last observations arrive in the same step."""

    ids = ("a", "b", "c", "d")

    def observing(self, t):
        return self.ids if t == 5 else self.ids[:2] if t < 5 else self.ids[2:]

    def ending(self, t):
        return {"a": TERMINATED, "b": TRUNCATED} if t == 5 else {}


class Macro(Ledgered):
    """Agent k acts every `every` steps, from step k on; all are rewarded in each step."""

    every = 20
    length = 50
    end = TRUNCATED
    least_steps = 60

    def observing(self, t):
        return [agent for k, agent in enumerate(self.ids) if (t - k) % self.every == 0]

    def rewarded(self, t):
        return self.ids


WORLDS["macro-actions of 20 steps"] = Macro


@world("one macro-action of 20 steps at a time")
class OneMacro(Macro):
    ids = ("a",)


@world("macro-actions of 150 steps")
class LongMacro(Macro):
    every = 150
    length = 300
    end = TERMINATED
    least_steps = 320


@world("some wait, some act")
class Mixture(Ledgered):
    """Agent a acts in each step, b in every third, c in every fifth; masks are in infos; rewards are for all."""

    ids = ("a", "b", "c")
    length = 22
    masks = "infos"
    end = TRUNCATED

    def observing(self, t):
        return [agent for agent, every in zip(self.ids, (1, 3, 5), strict=True) if t % every == 0]

    def rewarded(self, t):
        return self.ids


@world("steps without agents")
class Empty(Ledgered):
    def observing(self, t):
        return [] if t % 4 in (2, 3) and t != self.length else self.ids

    def rewarded(self, t):
        return self.ids


@world("lengths that vary")
class Lengths(Ledgered):
    """Each env and each episode has another length."""

    end = TRUNCATED

    def length_now(self):
        return 3 + (7 * self.index + 5 * self.episode) % 17


@world("no last observations")
class Silent(Ledgered):
    end = TRUNCATED

    def observing(self, t):
        return [] if t == self.length else self.ids


define("no rewards", scale=0.0)
define("large rewards", scale=1e6)


# Spaces.

define("masks in infos", masks="infos", action=Discrete(5))
define("masks in observations", masks="observations", action=Discrete(5))
define("masks of several choices", masks="infos", action=gym.spaces.MultiDiscrete([3, 2]))
define("actions from 3 on", action=Discrete(4, start=3))
define("masked actions from 3 on", action=Discrete(4, start=3), masks="infos")
define("several choices", action=gym.spaces.MultiDiscrete([3, 2]))
define("continuous actions", action=Box(-1, 1, (2,), np.float32))
define("actions of two parts", action=gym.spaces.Tuple((Discrete(2), Box(-1, 1, (2,), np.float32))))
define("dict observations", observation=gym.spaces.Dict(x=VECTOR, y=Discrete(3)))
define("images", observation=Box(0, 255, (10, 10, 3), np.uint8))
define("matrices", observation=Box(-1, 1, (3, 2), np.float32))
define("float64 observations", observation=Box(-1, 1, (3,), np.float64))
define("integer observations", observation=Box(-20, 20, (6,), np.int64))
define("numbered observations", observation=Discrete(2000))
define("unequal observations", observation={"a": VECTOR, "b": Box(-1, 1, (4,), np.float32)})
define("unequal actions", action={"a": Discrete(3), "b": Discrete(4)})
define("a state of integers", state_space=Box(0, 255, (3, 2), np.uint8))
define("no state", state_space=None, state=None)


# Ids.


class Team(enum.Enum):
    RED = 1
    BLUE = 2


define("ids are enum members", ids=tuple(Team))
define("ids are bytes", ids=(b"red", b"blue"))
define("ids are numbers", ids=(1, 0))
define("ids are tuples", ids=(("red", 0), ("red", 1)))


@world("ids in a set")
class Unordered(Ledgered):
    def agents_of(self):
        return set(self.ids)
