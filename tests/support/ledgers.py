"""Ledgers of what an env issues in one episode, by PettingZoo's own loops and by a loop over RLlib's protocol."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fastmarl.core.envs.values import random_action
from fastmarl.core.spaces.masks import action_mask
from support.differences import is_same

MOST_TURNS_PER_STEP = 20  # of PettingZoo's loop, with agents that have ended


@dataclass
class Entry:
    """One agent's account: what it got up to its end, and after it."""

    actions: int = 0
    reward: float = 0.0
    observation: Any = None  # the last one
    end: str | None = None
    ended_at: int | None = None  # env step
    late_reward: float = 0.0


@dataclass
class Ledger:
    """An episode.

    Attributes:
        steps: that were made.
        is_over: whether the episode has ended.
    """

    steps: int = 0
    is_over: bool = False
    agents: dict[Any, Entry] = field(default_factory=dict)

    def note(self, obs: dict, rewards: dict, terminateds: dict, truncateds: dict) -> None:
        """Add what a step, or a turn, has issued."""
        for agent in [*obs, *rewards]:
            self.agents.setdefault(agent, Entry())
        for agent, reward in rewards.items():
            if self.agents[agent].end is None:
                self.agents[agent].reward += float(reward)
            else:
                self.agents[agent].late_reward += float(reward)
        for agent, observation in obs.items():
            if self.agents[agent].end is None:
                self.agents[agent].observation = observation
        for agent in [agent for agent in self.agents if self.agents[agent].end is None]:
            self._end(agent, terminateds.get(agent, False), truncateds.get(agent, False))

    def close(self, terminated: Any, truncated: Any) -> None:
        """The episode is over; agents without a flag of their own have these."""
        self.is_over = True
        for agent in [agent for agent in self.agents if self.agents[agent].end is None]:
            self._end(agent, terminated, truncated)

    def is_living(self, agent: Any) -> bool:
        return agent not in self.agents or self.agents[agent].end is None

    def _end(self, agent: Any, terminated: Any, truncated: Any) -> None:
        if terminated or truncated:
            self.agents[agent].end = " and ".join(["terminated"] * bool(terminated) + ["truncated"] * bool(truncated))
            self.agents[agent].ended_at = self.steps

    def differences(self, other: "Ledger") -> list[str]:
        """Where another one differs, in words: "steps", "is_over", "end of a", ..."""
        found = [name for name in ("steps", "is_over") if getattr(self, name) != getattr(other, name)]
        for agent in {**self.agents, **other.agents}:
            one, two = self.agents.get(agent, Entry()), other.agents.get(agent, Entry())
            found += [f"{name} of {agent}" for name in vars(one) if not is_same(getattr(one, name), getattr(two, name))]
        return found


class Player:
    """Chooses legal actions; two of them choose alike, whatever the order in which agents are asked."""

    def __init__(self, env: Any, agents: Iterable[Any]):
        self.spaces = {agent: env.action_space(agent) for agent in agents}
        for i, space in enumerate(self.spaces.values()):
            space.seed(i)

    def __call__(self, agent: Any, observation: Any, info: Any) -> Any:
        return random_action(self.spaces[agent], action_mask(observation, info))


def of_parallel_loop(env: Any, steps: int) -> Ledger:
    """By the loop in PettingZoo's documentation of ParallelEnv: `while env.agents`."""
    player, ledger = Player(env, env.possible_agents), Ledger()
    obs, infos = env.reset(seed=7)
    ledger.note(obs, {}, {}, {})
    while env.agents and ledger.steps < steps:
        acting = [agent for agent in env.agents if agent in obs]
        actions = {agent: player(agent, obs[agent], infos.get(agent)) for agent in acting}
        for agent in filter(ledger.is_living, actions):
            ledger.agents[agent].actions += 1
        obs, rewards, terminateds, truncateds, infos = env.step(actions)
        ledger.steps += 1
        ledger.note(obs, rewards, terminateds, truncateds)
    ledger.is_over = not env.agents
    return ledger


def of_aec_loop(env: Any, steps: int) -> Ledger:
    """By the loop in PettingZoo's documentation of AECEnv: `for agent in env.agent_iter()`."""
    player, ledger = Player(env, env.possible_agents), Ledger()
    env.reset(seed=7)
    for agent in islice(env.agent_iter(), MOST_TURNS_PER_STEP * steps):
        observation, reward, terminated, truncated, info = env.last()
        if ledger.is_living(agent) or not (terminated or truncated):  # one that stays listed is named again and again
            observed = {} if observation is None else {agent: observation}
            ledger.note(observed, {agent: reward}, {agent: terminated}, {agent: truncated})
        if terminated or truncated:
            env.step(None)
        elif ledger.steps == steps:
            break
        else:
            ledger.agents[agent].actions += 1
            ledger.steps += 1
            env.step(player(agent, observation, info))
    ledger.is_over = not env.agents
    return ledger


def of_protocol(env: Any, bare: Any, steps: int) -> Ledger:
    """By a loop over an env in RLlib's protocol, as runners have it: who was observed and has not ended acts next.

    Args:
        env: in RLlib's protocol.
        bare: the PettingZoo env in it.
    """
    player, ledger = Player(bare, bare.possible_agents), Ledger()
    obs, infos = env.reset(seed=7)
    ledger.note(obs, {}, {}, {})
    while not ledger.is_over and ledger.steps < steps:
        acting = [agent for agent in obs if ledger.is_living(agent)]
        actions = {agent: player(agent, obs[agent], infos.get(agent)) for agent in acting}
        for agent in actions:
            ledger.agents[agent].actions += 1
        obs, rewards, terminateds, truncateds, infos = env.step(actions)
        ledger.steps += 1
        ledger.note(obs, rewards, terminateds, truncateds)
        if terminateds["__all__"] or truncateds.get("__all__", False):
            ledger.close(terminateds["__all__"], truncateds.get("__all__", False))
    return ledger
