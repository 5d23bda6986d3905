"""Environments that write down in a ledger what they send and receive."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

import fastmarl

Agent = Hashable
TERMINATED, TRUNCATED = "terminated", "truncated"


@dataclass
class Entry:
    """One reset (t is 0) or step of an environment, as plain dicts by agent.

    Attributes:
        actions: those that the step received.
        observations, rewards: those that it sent, copied.
        masks: legal choices, a list of 0 and 1 for each agent with an observation.
        ended: agents that ended by a flag of their own, with TERMINATED or TRUNCATED.
        end: the same for the episode; empty if it goes on.
        state: the global state afterwards.
    """

    episode: int
    t: int
    actions: dict[Agent, Any]
    observations: dict[Agent, Any]
    rewards: dict[Agent, float] = field(default_factory=dict)
    masks: dict[Agent, list[int]] = field(default_factory=dict)
    ended: dict[Agent, str] = field(default_factory=dict)
    end: str = ""
    state: Any = None


class Ledgered(fastmarl.MultiAgentEnv):
    """A deterministic environment; subclasses say who observes, is rewarded and ends at which step of an episode.

    Attributes:
        ids: agents, in order.
        observation, action: their spaces, or spaces by agent.
        length: steps of an episode.
        end: TERMINATED or TRUNCATED, how episodes end.
        limit: steps after which `--max-steps` cuts episodes, if it is not 0.
        masks: where masks are: in "infos", in "observations", or nowhere.
        options: further options of `fastmarl train` that this world needs.
        scale: factor of rewards.
        least_steps: env steps that a run must have for every kind of event to occur.
        ledger: entries, in order.
    """

    ids: ClassVar[Sequence[Agent]] = ("a", "b")
    observation: ClassVar[gym.Space | Mapping[Agent, gym.Space]] = gym.spaces.Box(-1, 1, (3,), np.float32)
    action: ClassVar[gym.Space | Mapping[Agent, gym.Space]] = gym.spaces.Discrete(3)
    length: ClassVar[int] = 10
    end: ClassVar[str] = TERMINATED
    limit: ClassVar[int] = 0
    masks: ClassVar[str] = ""
    options: ClassVar[Sequence[str]] = ()
    least_steps: ClassVar[int] = 0
    scale: ClassVar[float] = 1.0
    supports_checkpoint = True
    state_space = gym.spaces.Box(-1, 1, (4,), np.float32)

    def __init__(self, config: Any):
        self.index = config.vector_index
        self.possible_agents = self.agents_of()
        self.observation_spaces = {agent: self.observation_space_of(agent) for agent in self.ids}
        self.action_spaces = {agent: _of(self.action, agent) for agent in self.ids}
        self.ledger: list[Entry] = []
        self.episode, self.t = -1, 0

    # To be overridden.

    def agents_of(self) -> Any:
        """Return what `possible_agents` is, a list unless the world is about its type."""
        return list(self.ids)

    def observing(self, t: int) -> Iterable[Agent]:
        return self.ids

    def rewarded(self, t: int) -> Iterable[Agent]:
        return self.observing(t)

    def ending(self, t: int) -> Mapping[Agent, str]:
        return {}

    def length_now(self) -> int:
        return self.length

    # The protocol.

    def observation_space_of(self, agent: Agent) -> gym.Space:
        space = _of(self.observation, agent)
        if self.masks != "observations":
            return space
        return gym.spaces.Dict({"seen": space, "action_mask": gym.spaces.MultiBinary(choices(_of(self.action, agent)))})

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.episode, self.t = self.episode + 1, 0
        entry = Entry(self.episode, 0, {}, {}, state=self._state())
        return self._sent(entry)

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        self.t += 1
        entry = Entry(self.episode, self.t, deepcopy(actions), {}, state=self._state())
        entry.ended = dict(self.ending(self.t))
        is_over = self.t == self.length_now()
        entry.end = self.end if is_over else TRUNCATED if self.t == self.limit else ""
        entry.rewards = {agent: self.reward(agent) for agent in self.rewarded(self.t)}
        observations, infos = self._sent(entry)
        flags = []
        for kind in (TERMINATED, TRUNCATED):
            own = {agent: True for agent, end in entry.ended.items() if end == kind}
            flags.append(own | {"__all__": is_over and self.end == kind})
        return observations, dict(entry.rewards), flags[0], flags[1], infos

    def state(self) -> np.ndarray:
        return self._state()

    def get_state(self) -> dict:
        return {"episode": self.episode, "t": self.t}

    def set_state(self, state: dict) -> None:
        self.episode, self.t = state["episode"], state["t"]

    # What it sends.

    def reward(self, agent: Agent) -> float:
        return self.scale * float(self._draws("reward", agent).integers(-8, 9) / 8)

    def legal(self, agent: Agent) -> list[int]:
        """Return which choices are legal; at least one for each part of the action."""
        draws, mask = self._draws("mask", agent), []
        for size in parts(_of(self.action, agent)):
            part = (draws.random(size) < 0.5).astype(int).tolist()
            part[draws.integers(size)] = 1
            mask += part
        return mask

    def _sent(self, entry: Entry) -> tuple[dict, dict]:
        """Complete the entry; returns observations and infos."""
        infos = {}
        for agent in self.observing(self.t):
            seen = value_in(_of(self.observation, agent), self._draws("observation", agent))
            if self.masks:
                entry.masks[agent] = self.legal(agent)
                mask = np.array(entry.masks[agent], np.int8)
                if self.masks == "observations":
                    seen = {"seen": seen, "action_mask": mask}
                else:
                    infos[agent] = {"action_mask": mask}
            entry.observations[agent] = seen
        self.ledger.append(entry)
        return deepcopy(entry.observations), infos

    def _state(self) -> np.ndarray:
        return value_in(self.state_space, self._draws("state")) if self.state_space else None

    def _draws(self, what: str, agent: Agent = None) -> np.random.Generator:
        place = [*self.ids, None].index(agent)
        return np.random.default_rng([*what.encode(), self.index, self.episode, self.t, place])


def _of(space: Any, agent: Agent) -> gym.Space:
    return space if isinstance(space, gym.Space) else space[agent]


def parts(space: gym.Space) -> list[int]:
    """Return the numbers of choices of a discrete space."""
    return [int(space.n)] if isinstance(space, gym.spaces.Discrete) else [int(n) for n in space.nvec]


def choices(space: gym.Space) -> int:
    return sum(parts(space))


def value_in(space: gym.Space, draws: np.random.Generator) -> Any:
    """Draw a value in the space, of its dtype; never 0 in floats."""
    if isinstance(space, gym.spaces.Dict):
        return {key: value_in(inner, draws) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(value_in(inner, draws) for inner in space.spaces)
    if isinstance(space, gym.spaces.Discrete):
        return int(space.start + draws.integers(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return draws.integers(space.nvec).astype(space.dtype)
    if isinstance(space, gym.spaces.MultiBinary):
        return draws.integers(2, size=space.shape, dtype=np.int8)
    if np.issubdtype(space.dtype, np.floating):
        return draws.uniform(space.low, space.high).astype(space.dtype)
    return draws.integers(space.low, space.high, space.shape, dtype=space.dtype, endpoint=True)
