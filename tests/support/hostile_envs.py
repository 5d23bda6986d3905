"""Small PettingZoo envs, each of which does one thing that well-behaved ones don't."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv

BOX, MOVES = gym.spaces.Box(0, 1000, (2,), np.float32), gym.spaces.Discrete(5)
AGENTS = ("a", "b", "c")
MOST_CALLS = 5000  # of last(), in an episode


class Frame:
    """The result of one step. Agents are letters.

    Args:
        agents: members of `agents` after the step.
        terminated, truncated: agents whose flags are True.
        obs, rewards, flags: agents with an entry; None means those that were in `agents` before.
        end: `__all__` in (terminateds, truncateds), if present.
    """

    def __init__(
        self,
        agents: str,
        terminated: str = "",
        truncated: str = "",
        *,
        obs: str | None = None,
        rewards: str | None = None,
        flags: str | None = None,
        end: tuple[bool, bool] | None = None,
    ):
        self.agents, self.terminated, self.truncated = agents, terminated, truncated
        self.obs, self.rewards, self.flags, self.end = obs, rewards, flags, end


class Framed(ParallelEnv):
    """A ParallelEnv that plays frames, and the last of them over and over.

    Args:
        frames: that of `reset()` first.
        reuses: whether all steps return the same dicts of flags.
        flag: what makes flags of bools.
    """

    metadata: ClassVar = {"name": "scripted"}
    render_mode = None

    def __init__(self, *frames: Frame, reuses: bool = False, flag: Callable[[bool], Any] = bool):
        self.possible_agents, self.frames = list(AGENTS), frames
        self._reuses, self._flag, self._flags = reuses, flag, ({}, {})

    def observation_space(self, agent: str) -> gym.Space:
        return BOX

    def action_space(self, agent: str) -> gym.Space:
        return MOVES

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.t, self.agents = 0, list(self.frames[0].agents)
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.t += 1
        frame, before = self.frames[min(self.t, len(self.frames) - 1)], self.agents
        self.agents = list(frame.agents)
        obs, rewarded, flagged = (before if own is None else own for own in (frame.obs, frame.rewards, frame.flags))
        flags = self._flags if self._reuses else ({}, {})
        for i, (of_kind, true) in enumerate(zip(flags, (frame.terminated, frame.truncated), strict=True)):
            of_kind.update({agent: self._flag(agent in true) for agent in flagged})
            of_kind.update({} if frame.end is None else {"__all__": frame.end[i]})
        return self._observations(obs), {agent: self.t + ord(agent) / 8 for agent in rewarded}, *flags, {}

    def _observations(self, agents: Iterable[str]) -> dict[str, np.ndarray]:
        return {agent: np.array([self.t, ord(agent)], np.float32) for agent in agents}


FIRST, GO_ON = Frame("ab"), Frame("ab")
PARALLEL: dict[str, Callable[[], ParallelEnv]] = {
    "as PettingZoo has it": lambda: Framed(FIRST, GO_ON, Frame("", "ab")),
    "one by one": lambda: Framed(FIRST, GO_ON, Frame("b", "a"), Frame("b"), Frame("", "", "b")),
    "terminated and truncated at once": lambda: Framed(FIRST, GO_ON, Frame("", "a", "b")),
    "flags of NumPy": lambda: Framed(FIRST, GO_ON, Frame("b", "a"), Frame("", "", "b"), flag=np.bool_),
    "keeps agents, terminated": lambda: Framed(FIRST, GO_ON, Frame("ab", "ab"), GO_ON),
    "keeps agents, truncated": lambda: Framed(FIRST, GO_ON, Frame("ab", "", "ab"), GO_ON),
    "keeps agents that end one by one": lambda: Framed(
        FIRST, Frame("ab", "a"), Frame("ab", obs="b", rewards="b"), Frame("ab", "", "b", obs="b", rewards="b"), GO_ON
    ),
    "keeps agents, flags again and again": lambda: Framed(
        FIRST, Frame("ab", "a"), Frame("ab", "a", obs="b", rewards="b"), Frame("ab", "a", "b", obs="b", rewards="b")
    ),
    "__all__ in terminateds": lambda: Framed(
        FIRST, Frame("ab", end=(False, False)), Frame("ab", end=(True, False)), GO_ON
    ),
    "__all__ in truncateds": lambda: Framed(
        FIRST, Frame("ab", end=(False, False)), Frame("ab", end=(False, True)), GO_ON
    ),
    "empties agents without flags": lambda: Framed(FIRST, GO_ON, Frame("")),
    "flags of those that end only": lambda: Framed(
        FIRST, Frame("ab", flags=""), Frame("b", "a", flags="a"), Frame("b", flags=""), Frame("", "b", flags="b")
    ),
    "flags of agents that have left": lambda: Framed(
        FIRST, Frame("b", "a"), Frame("b", "a", flags="ab"), Frame("", "a", "b", flags="ab")
    ),
    "rewards of agents that have left": lambda: Framed(
        FIRST, Frame("b", "a"), Frame("b", rewards="ab"), Frame("", "b", rewards="ab")
    ),
    "agents that come later": lambda: Framed(FIRST, Frame("abc", obs="abc"), Frame("abc"), Frame("", "ab", "c")),
    "the next generation": lambda: Framed(FIRST, Frame("c", "ab", obs="abc"), Frame("c"), Frame("", "c")),
    "steps of nobody": lambda: Framed(FIRST, Frame("ab", obs="", rewards="", flags=""), GO_ON, Frame("", "ab")),
    "an agent that vanishes": lambda: Framed(FIRST, Frame("b", obs="b"), Frame("b"), Frame("", "b")),
    "the same dicts of flags": lambda: Framed(FIRST, GO_ON, GO_ON, Frame("", "ab"), reuses=True),
    "no last observations": lambda: Framed(FIRST, GO_ON, Frame("", "", "ab", obs="")),
}


class Turns(AECEnv):
    """A, b and c take turns; each action pays all others. All end in turn 7.

    Subclasses say what happens after a turn.
    """

    metadata: ClassVar = {"name": "turns"}
    render_mode = None
    length = 7

    def __init__(self):
        self.possible_agents = list(AGENTS)

    def observation_space(self, agent: str) -> gym.Space:
        return BOX

    def action_space(self, agent: str) -> gym.Space:
        return MOVES

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        self.turn, self.agents, self.agent_selection = 0, list(AGENTS), "a"
        self.rewards, self._cumulative_rewards = (dict.fromkeys(AGENTS, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(AGENTS, False) for _ in range(2))
        self.infos = {agent: {} for agent in AGENTS}
        self.calls = 0
        self._skip_agent_selection = None

    def observe(self, agent: str) -> np.ndarray | None:
        return np.array([self.turn, ord(agent)], np.float32)

    def last(self, observe: bool = True) -> tuple:
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise RuntimeError("an endless loop")
        return super().last(observe)

    def step(self, action: int | None) -> None:
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self.take_dead_turn(action)
            return
        self.turn += 1
        actor = self.agent_selection
        self._cumulative_rewards[actor] = 0.0
        self.rewards = {agent: 0.0 if agent == actor else self.turn + ord(agent) / 8 for agent in self.agents}
        self._accumulate_rewards()
        self.agent_selection = self.after(actor)
        if self.turn == self.length:
            self.end()
        self.after_turn()

    def take_dead_turn(self, action: int | None) -> None:
        self._was_dead_step(action)

    def after(self, agent: str) -> str:
        return self.agents[(self.agents.index(agent) + 1) % len(self.agents)]

    def end(self) -> None:
        self.terminations = dict.fromkeys(self.agents, True)

    def after_turn(self) -> None:
        pass

    def kill(self, agent: str) -> None:
        self.terminations[agent] = True
        self._deads_step_first()


class Truncated(Turns):
    def end(self) -> None:
        self.truncations = dict.fromkeys(self.agents, True)


class Mixed(Turns):
    def end(self) -> None:
        self.terminations["a"] = self.truncations["b"] = self.truncations["c"] = True


class DiesEarly(Turns):
    def after_turn(self) -> None:
        if self.turn == 3:
            self.kill("b")


class StaysListed(Turns):
    """Agents that have ended stay in `agents`, and have turns for ever."""

    def take_dead_turn(self, action: int | None) -> None:
        self.agent_selection = self.after(self.agent_selection)

    def after_turn(self) -> None:
        self.terminations["b"] = self.terminations["b"] or self.turn == 3


class TidiesAgents(Turns):
    """Empties `agents` in its last step, so that no agent has a turn in which it hears of its end."""

    def after_turn(self) -> None:
        self.agents = [] if self.turn == self.length else self.agents


class TidiesTruncatedAgents(TidiesAgents, Truncated):
    pass


class TidiesAll(Turns):
    """Clears all dicts in its last step."""

    def after_turn(self) -> None:
        if self.turn == self.length:
            self.agents = []
            for values in (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos):
                values.clear()

    def observe(self, agent: str) -> np.ndarray | None:
        return super().observe(self.agents[self.agents.index(agent)])


class Removes(Turns):
    """Removes b from `agents` when it dies, without a turn of its own."""

    def after_turn(self) -> None:
        if self.turn == 4:
            self.terminations["b"] = True
            self.remove()

    def remove(self) -> None:
        self.agent_selection = "c"
        self.agents.remove("b")


class RemovesAll(Removes):
    """Removes all that it has of b."""

    def remove(self) -> None:
        super().remove()
        for values in (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos):
            del values["b"]


class ComesLater(Turns):
    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        super().reset(seed, options)
        self.agents.remove("c")

    def after_turn(self) -> None:
        if self.turn == 3:
            self.agents.append("c")


class DeadAtReset(Turns):
    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        super().reset(seed, options)
        self.kill("a")
        self._skip_agent_selection = "b"


class RewardAtReset(Turns):
    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        super().reset(seed, options)
        self._cumulative_rewards = {"a": 1.0, "b": 2.0, "c": 4.0}


class Blind(Turns):
    """Shows nothing to agents that have ended."""

    def observe(self, agent: str) -> np.ndarray | None:
        return None if self.terminations[agent] else super().observe(agent)


TURN_BASED: dict[str, Callable[[], AECEnv]] = {
    "turns": Turns,
    "turns, truncated": Truncated,
    "turns, terminated and truncated": Mixed,
    "turns, one dies early": DiesEarly,
    "turns, agents stay listed": StaysListed,
    "turns, tidies agents": TidiesAgents,
    "turns, tidies truncated agents": TidiesTruncatedAgents,
    "turns, tidies all": TidiesAll,
    "turns, removes an agent": Removes,
    "turns, removes all of an agent": RemovesAll,
    "turns, agents that come later": ComesLater,
    "turns, dead at reset": DeadAtReset,
    "turns, rewards at reset": RewardAtReset,
    "turns, blind after the end": Blind,
}
