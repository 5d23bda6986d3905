"""Decisions and estimates of ledgers, by lists and dicts: the oracle for all that algorithms learn from."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from support.ledgered.base import TERMINATED, Agent, Entry


@dataclass
class Decision:
    """One action of an agent, and its outcome.

    Attributes:
        life: number of the agent's earlier ends in this episode.
        acted, known: steps since the env was made, from 1 on: the one that took the action, and the one with the
            agent's next observation or end; None while the agent waits.
        t, known_t: steps of the episode, of the observation that led to the action and of the outcome.
        state, next_state: of the whole environment at these steps.
        reward: all that the agent received from the action's step to the outcome, and before its first observation.
        next_observation: the previous one if the agent ended without another.
        end: TERMINATED or TRUNCATED if the outcome ended the agent.
        cuts: number of cuts in the episode before the outcome. An agent that is back in the call in which it ended cuts
            the trajectories of all agents, as the end of a call does.
    """

    env: int
    episode: int
    agent: Agent
    life: int
    acted: int
    t: int
    observation: Any
    mask: list[int] | None
    state: Any
    action: Any
    reward: float
    known: int | None = None
    known_t: int | None = None
    next_observation: Any = None
    next_mask: list[int] | None = None
    next_state: Any = None
    end: str = ""
    cuts: int = 0

    @property
    def key(self) -> tuple[int, Agent, int]:
        return self.env, self.agent, self.acted

    @property
    def whole_life(self) -> tuple[Hashable, ...]:
        return self.env, self.episode, self.agent, self.life


class _Episode:
    """One running episode: who waits for an outcome, and what else is known."""

    def __init__(self) -> None:
        self.waiting: dict[Agent, Decision] = {}
        self.seen: dict[Agent, tuple[int, Any, list[int] | None, Any]] = {}  # t, observation, mask, state
        self.early: dict[Agent, float] = {}
        self.lives: dict[Agent, int] = {}
        self.ended: set[Agent] = set()
        self.ends: dict[Agent, int] = {}  # step since the env was made, of the newest end
        self.cuts = self.cut_at = 0


def decisions_of(env: int, ledger: Iterable[Entry], fragment: int) -> list[Decision]:
    """Return all decisions in the ledger of an env, in order, with those that wait for their outcome.

    Args:
        env: Index of the env.
        ledger: Its entries.
        fragment: Env steps of a call.
    """
    found: list[Decision] = []
    step, now = 0, _Episode()
    for entry in ledger:
        if entry.t == 0:
            now = _Episode()
        else:
            step += 1
        for agent, action in entry.actions.items():
            place = env, entry.episode, agent, now.lives.get(agent, 0), step
            now.waiting[agent] = Decision(*place, *now.seen[agent], action, now.early.pop(agent, 0.0))
            found.append(now.waiting[agent])
        _respawn(now, entry, step, (step - 1) // fragment * fragment)
        _outcomes(now, entry, step)
    return found


def _respawn(now: _Episode, entry: Entry, step: int, call_began: int) -> None:
    if now.cut_at and now.cut_at == step - 1:
        now.cuts += 1
    respawned = now.ended & entry.observations.keys()
    if any(now.ends[agent] > max(call_began, now.cut_at) for agent in respawned):
        now.cut_at = step  # outcomes of this step are before the cut
    now.ended -= respawned
    now.lives |= {agent: now.lives.get(agent, 0) + 1 for agent in respawned}


def _outcomes(now: _Episode, entry: Entry, step: int) -> None:
    for agent, reward in entry.rewards.items():
        if agent in now.waiting:
            now.waiting[agent].reward += reward
        elif agent not in now.ended:
            now.early[agent] = now.early.get(agent, 0.0) + reward
    for agent in list(now.waiting):
        end = entry.ended.get(agent, entry.end)
        if end or agent in entry.observations:
            decision = now.waiting.pop(agent)
            decision.known, decision.known_t, decision.end = step, entry.t, end
            decision.next_state, decision.cuts = entry.state, now.cuts
            decision.next_observation = entry.observations.get(agent, decision.observation)
            decision.next_mask = entry.masks.get(agent, decision.mask)
    now.ended |= entry.ended.keys()
    now.ends |= dict.fromkeys(entry.ended, step)
    for agent, seen in entry.observations.items():
        now.seen[agent] = entry.t, seen, entry.masks.get(agent), entry.state


def in_trajectories(decisions: Iterable[Decision]) -> list[list[Decision]]:
    """Group decisions by the life of an agent between cuts, each in order."""
    grouped: dict[Any, list[Decision]] = {}
    for decision in decisions:
        grouped.setdefault((decision.whole_life, decision.cuts), []).append(decision)
    return list(grouped.values())


Place = tuple[int, int, int]  # env, episode and its step


Seen = tuple[Any, list[int] | None]  # observation and mask


def observed_in(decisions: Iterable[Decision], ledgers: Iterable[Iterable[Entry]]) -> dict[Place, dict[Agent, Seen]]:
    """Return by place what the agents observed that had not terminated; an agent cut while it waits observes again."""
    found: dict[Place, dict[Agent, Seen]] = {}
    for env, ledger in enumerate(ledgers):
        for entry in ledger:
            for agent, seen in entry.observations.items():
                if entry.ended.get(agent, entry.end) != TERMINATED:
                    found.setdefault((env, entry.episode, entry.t), {})[agent] = seen, entry.masks.get(agent)
    for each in decisions:
        if each.known_t is not None and each.end != TERMINATED:
            place = each.env, each.episode, each.known_t
            found.setdefault(place, {})[each.agent] = each.next_observation, each.next_mask
    return found


def team_reward(decisions: Iterable[Decision], place: Decision, after: int, until: float) -> float:
    """Return the rewards of all decisions of an episode whose outcome came after one of its steps, until another."""
    return sum(
        each.reward
        for each in decisions
        if (each.env, each.episode) == (place.env, place.episode)
        and each.known_t is not None
        and after < each.known_t <= until
    )


def n_step_returns(rewards: Sequence[float], values: Sequence[float], end: str, n: int, gamma: float) -> list[float]:
    """Return sums of n discounted rewards and the value after them; values are those of all observations."""
    found = []
    for i in range(len(rewards)):
        last = min(i + n, len(rewards))
        found.append(sum(gamma ** (k - i) * rewards[k] for k in range(i, last)))
        if last < len(rewards) or end != TERMINATED:
            found[-1] += gamma ** (last - i) * values[last]
    return found


def gae(
    rewards: Sequence[float], values: Sequence[float], last_value: float, end: str, gamma: float, lambda_: float
) -> list[float]:
    """Return generalised advantage estimates of a trajectory's steps."""
    advantages, following, advantage = [], 0.0 if end == TERMINATED else last_value, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + gamma * following - value + gamma * lambda_ * advantage
        advantages.append(advantage)
        following = value
    return advantages[::-1]


def normalised(advantages: Sequence[float]) -> list[float]:
    """Shift to mean 0 and scale to standard deviation 1, unless all are equal."""
    mean = sum(advantages) / len(advantages)
    spread = (sum((each - mean) ** 2 for each in advantages) / len(advantages)) ** 0.5
    return [(each - mean) / spread if spread > 1e-4 else 0.0 for each in advantages]
