"""A world in which agents join, wait, die and return, and what its ledger says about the team's decisions."""

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

import fastmarl

AGENTS = ["a", "b", "c"]
N_ACTIONS = 4


@dataclass
class Step:
    """One env step of an episode.

    Attributes:
        obs: agent -> number that occurs only once.
        masks: agent -> the mask with its observation.
        rewards: agent -> reward that came with the step.
        ended: agent -> "terminated" or "truncated".
        actions: agent -> its action on this step's observation.
    """

    obs: dict[str, int]
    masks: dict[str, Any]
    rewards: dict[str, float] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    actions: dict[str, int] = field(default_factory=dict)
    is_last: bool = False


class TeamWorld(fastmarl.MultiAgentEnv):
    """Agents act at every step while they live, or every few steps; all that live are rewarded.

    The ledger of each episode is appended to `config["ledgers"]`.
    """

    possible_agents = AGENTS

    def __init__(self, config):
        self.config, self.serial, self.rng = config, 1000 * config.vector_index, np.random.default_rng(config["seed"])
        self.observation_spaces = dict.fromkeys(AGENTS, gym.spaces.Box(0, 1e7, (2,), np.float32))
        self.action_spaces = dict.fromkeys(AGENTS, gym.spaces.Discrete(N_ACTIONS))

    def reset(self, *, seed=None, options=None):
        rng = self.rng
        self.t, self.length = 0, int(rng.integers(1, 60))
        self.every = {"a": int(rng.choice([1, 3])), "b": int(rng.integers(1, 9)), "c": int(rng.integers(1, 30))}
        first = {"a": 0, "b": 4} if rng.integers(2) else {"a": 2, "b": 0}
        self.begin = first | {"c": int(rng.choice([0, 7]))}
        self.death = {agent: int(rng.integers(1, 90)) for agent in AGENTS}
        deaths = sorted(self.death.values())  # an agent may return when another one dies
        self.back = {
            agent: int(rng.choice([death + 2, 10**6, *(t for t in deaths if t > death + 1)]))
            for agent, death in self.death.items()
        }
        self.kind = {agent: str(rng.choice(["terminated", "truncated"])) for agent in AGENTS}
        self.ledger: list[Step] = []
        self.present: set[str] = set()
        self.config["ledgers"].append(self.ledger)
        return self.noted(set())

    def alive(self, agent):
        return self.begin[agent] <= self.t <= self.death[agent] or self.t >= self.back[agent]

    def noted(self, ending):
        """Note the observations of this step, and return them with masks."""
        self.serial += 1
        is_last = self.t == self.length
        observing = [
            agent
            for agent in AGENTS
            if agent in ending
            or (self.alive(agent) and (self.t - self.begin[agent]) % self.every[agent] == 0 and not is_last)
            or (is_last and self.length % 3 and agent in self.present)
        ]
        self.present |= set(observing)
        obs = {agent: 10 * self.serial + AGENTS.index(agent) for agent in observing}
        masks = {agent: self.rng.permutation([1, 1, 0, 0]).astype(np.int8) for agent in obs}
        self.ledger.append(Step(obs, masks, is_last=is_last))
        return (
            {agent: np.array([1, number], np.float32) for agent, number in obs.items()},
            {agent: {"action_mask": mask} for agent, mask in masks.items()},
        )

    def step(self, actions):
        self.ledger[-1].actions = {agent: int(action) for agent, action in actions.items()}
        self.t += 1
        rewards = {agent: float(self.rng.integers(1, 9)) for agent in AGENTS if agent in self.present}
        ending = {agent for agent in self.present if self.t == self.death[agent]}
        obs, infos = self.noted(ending)
        step, is_over, how = self.ledger[-1], self.t == self.length, "truncated" if self.length % 2 else "terminated"
        step.rewards = dict(rewards)
        step.ended = {agent: self.kind[agent] for agent in ending}
        self.present -= ending
        if is_over:
            step.ended |= dict.fromkeys(self.present, how)
        terminateds, truncateds = (
            {agent: step.ended[agent] == name for agent in ending} | {"__all__": is_over and how == name}
            for name in ("terminated", "truncated")
        )
        return obs, rewards, terminateds, truncateds, infos


@dataclass
class Decision:
    """One agent's action, from its observation at env step `t` to the next one at `until` (None: not yet known)."""

    agent: str
    t: int
    obs: int
    action: int
    until: int | None = None
    reward: float = 0.0


def decisions_of(ledger: list[Step]) -> list[Decision]:
    """Return all decisions of an episode so far; those without a known outcome have no `until`."""
    found: list[Decision] = []
    open_: dict[str, Decision] = {}
    early: dict[str, float] = {}
    for t, step in enumerate(ledger):
        for agent, reward in step.rewards.items():
            if agent in open_:
                open_[agent].reward += reward
            else:
                early[agent] = early.get(agent, 0.0) + reward
        for agent in {**step.obs, **step.ended}:
            if agent in open_:
                open_.pop(agent).until = t
            if agent in step.actions:
                open_[agent] = Decision(agent, t, step.obs[agent], step.actions[agent], None, early.pop(agent, 0.0))
                found.append(open_[agent])
    return found


def rewards_between(decisions: list[Decision], begin: int, end: int) -> float:
    """Return what the team received for decisions whose outcomes came after `begin`, up to `end`."""
    return sum(each.reward for each in decisions if each.until is not None and begin < each.until <= end)


def present_in(ledger: list[Step]) -> dict[int, dict[str, int]]:
    """Return, by env step, what was observed by the agents that can act then, or could if they were not cut."""
    decisions = decisions_of(ledger)
    present: dict[int, dict[str, int]] = {}
    for t, step in enumerate(ledger):
        agents = {agent: number for agent, number in step.obs.items() if step.ended.get(agent) != "terminated"}
        for agent, kind in step.ended.items():  # without a last observation: the one before counts
            if kind == "truncated" and agent not in agents:
                earlier = [each for each in decisions if each.agent == agent]
                agents |= {agent: earlier[-1].obs} if earlier else {}
        if agents:
            present[t] = agents
    return present


def team_decisions(ledger: list[Step]) -> dict[int, dict[str, Any]]:
    """Return the team's complete decisions by env step: obs, actions, masks, rewards, and those of the next one."""
    decisions, last, present = decisions_of(ledger), len(ledger) - 1, present_in(ledger)
    found = {}
    for t in sorted(present):
        acting = [each for each in decisions if each.t == t]
        following = min((other for other in present if other > t), default=None)
        if not acting or any(each.until is None for each in acting):
            continue
        if following is None and not ledger[-1].is_last:
            continue  # someone may still join or return
        found[t] = {
            "obs": {each.agent: each.obs for each in acting},
            "actions": {each.agent: each.action for each in acting},
            "rewards": rewards_between(decisions, t, last if following is None else following),
            "new_obs": present[following] if following is not None else {},
            "terminateds": following is None,
        }
    return found
