"""Records of running episodes, following RLlib's rules: order of agents, modules, times; and counts for metrics.

The order of agents determines which random number each agent gets, so it exactly follows RLlib's dicts and sets:
agents of the reset in the order of the observation dict, later ones in the order of a set of all agents in the step,
and after a cut in the order of first appearance in the lookback window.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastmarl.core.errors import FinishedAgentError
from fastmarl.core.native._records import EpisodeRecord
from fastmarl.core.native._step_keys import StepKeys, count_steps
from fastmarl.core.store.lanes import LaneTable
from fastmarl.rllib.episodes.sample_block import is_set


@dataclass
class CallCounts:
    """Counts of a single call of `sample()`.

    As in RLlib, counts per agent and per module count observations. Agents and modules without observations are left
    out.
    """

    env_steps: int = 0
    agent_observations: dict[Hashable, int] = field(default_factory=dict)
    module_observations: dict[str, int] = field(default_factory=dict)
    episodes: int = 0  # finished episodes
    step_failures: int = 0
    resets: int = 0  # resets of all envs together, before the first tick
    ticks: int = 0  # steps of all envs together
    forwards: int = 0  # ticks in which modules ran
    lost_reward: float = 0.0  # sum of rewards outside of transitions
    lengths: list[int] = field(default_factory=list)  # per tick: sum of the lengths of the running chunks
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Totals of the stages "connect", "forward", "act" and "env_step"."""


@dataclass(slots=True)
class EpisodeNumbers:
    """Statistics of a finished episode over all its chunks, keyed by agent name in metrics."""

    length: int  # env steps
    episode_return: float
    duration_s: float
    agent_returns: dict[str, float]
    agent_steps: dict[str, int]
    module_returns: dict[str, float]


@dataclass(slots=True)  # not frozen, which would triple the constructor time
class AgentNumbers:
    """Statistics of a single agent in a chunk."""

    agent_id: Hashable
    module_id: str
    n_steps: int
    total: Any

    def __len__(self) -> int:
        return self.n_steps

    def get_return(self) -> Any:
        """Return the sum of rewards of the agent."""
        return self.total


class ChunkNumbers:
    """Statistics of a chunk, for the metrics.

    RLlib keeps chunks and reads their statistics in get_metrics(), so changes to returned chunks affect metrics. This
    object tracks the chunk as long as the chunk exists, without keeping it alive.

    If the RLlib loop takes over an episode, these objects replace earlier chunks that no longer exist. They have the
    part of the episode interface that RLlib metrics use.

    Args:
        length: Number of env steps.
        duration_s: Duration in seconds.
        agents: Agent key in the episode -> statistics, for agents with a completed step, in order.

    Attributes:
        length, duration_s, agents: The arguments, or the values last read from the chunk.
        id_: Id of the episode.
        is_done: True for the last chunk of an episode, as checked by RLlib metrics.
    """

    def __init__(self, length: int, duration_s: float, agents: dict[Hashable, AgentNumbers]):
        self.length = length
        self.duration_s = duration_s
        self.agents = agents
        self.id_ = ""
        self.is_done = False
        self._episode: Callable[[], Any] = _no_episode

    @classmethod
    def of(cls, episode: Any) -> "ChunkNumbers":
        """Return the statistics of an episode, and track its changes."""
        numbers = cls(0, 0.0, {})
        numbers.follow(episode)
        numbers.read(episode)
        return numbers

    def follow(self, episode: Any) -> None:
        """Track changes to an episode returned by sample()."""
        self.id_ = episode.id_
        self._episode = weakref.ref(episode)
        episode._numbers = self

    @property
    def episode(self) -> Any:
        """The episode, or None if it no longer exists."""
        return self._episode()

    @property
    def shown(self) -> Any:
        """The episode if it still exists, or else this object."""
        return self if (episode := self._episode()) is None else episode

    def up_to_date(self) -> "ChunkNumbers":
        """Re-read the statistics if the episode still exists, and return this object."""
        if (episode := self._episode()) is not None:
            self.read(episode)
        return self

    def read(self, episode: Any) -> None:
        """Read the statistics of the episode; called for the last time when it is deleted."""
        self.length, self.duration_s = len(episode), episode.get_duration_s()
        if is_set(episode, "agent_episodes"):  # otherwise, nothing can have been written to them
            # RLlib learners append a step to each agent and rename the episode.
            known = self.agents if episode.id_ != self.id_ else {}
            self.agents = {
                key: AgentNumbers(each.agent_id, each.module_id, len(known.get(key, each)), _return_of(each))
                for key, each in episode.agent_episodes.items()
            }

    def __len__(self) -> int:
        return self.up_to_date().length

    def get_return(self) -> Any:
        """Return the sum of rewards over all agents."""
        return sum(agent.total for agent in self.up_to_date().agents.values())

    def get_duration_s(self) -> float:
        """Return the duration in seconds."""
        return self.up_to_date().duration_s

    @property
    def agent_episodes(self) -> dict[Hashable, AgentNumbers]:
        """Agent id -> statistics of the agent."""
        return self.up_to_date().agents

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"can't read {name!r} of a chunk that sample() returned before this callback was added, only len(), "
            "get_return(), get_duration_s() and agent_episodes; add callbacks before the first call of sample()"
        )


def _no_episode() -> None:
    return None


def _return_of(agent_episode: Any) -> Any:
    """Compute `agent_episode.get_return()`, but without a Python loop over a float64 array."""
    rewards = agent_episode.get_rewards()
    if type(rewards) is np.ndarray and rewards.dtype == np.float64 and rewards.ndim == 1 and len(rewards):
        return np.add.accumulate(rewards)[-1] + 0  # in the order of sum(), which never returns -0.0
    return sum(rewards)


class RLlibRecord(EpisodeRecord):
    """Record of the running episode in an env."""

    def __init__(self, env_index: int, id_: str, started_at: float, new_id: Callable[[], str]):
        super().__init__(env_index, id_, started_at)
        self.order: list[Hashable] = []  # agents of the chunk, including ended ones that RLlib still keeps
        self.lane_of: dict[Hashable, int] = {}  # agent id -> lane in the chunk
        self.mapping: dict[Hashable, str] = {}  # agent id -> module id
        self.ended_before: dict[Hashable, list[int]] = {}  # agent of `order` without lane -> env steps of observations
        # RLlib data of these agents: (episode, buffer of times).
        self.ended_agent_episodes: dict[Hashable, tuple[Any, Any]] = {}
        self.joined: list[Hashable] = []  # agents without a lane yet
        self.map_order: list[Hashable] = []  # agents of the lookback window, in the order of the RLlib time maps
        self.carried: set[Hashable] = set()  # agents continued from the previous chunk
        # Ids of the SingleAgentEpisode objects of agents, the same in all chunks.
        self.agent_episode_ids: defaultdict[Hashable, str] = defaultdict(new_id)
        self.flags: dict[int, tuple[Any, Any]] = {}  # ended lane -> (terminated, truncated), in the env's types
        self.unseen: set[int] = set()  # lanes ended without an observation
        self.earlier: list[ChunkNumbers] = []
        self.unobserved_rewards: dict[Hashable, Any] = {}  # in this chunk, before the first observation of an agent
        self.is_terminated: Any = False
        self.is_truncated: Any = False
        self.has_flags = False  # True once the env has set one of them to anything but False
        self.last_step_at: float | None = None  # set when the chunk ends
        self.awaits_reset = True  # the next observations of the env are the first of the episode
        self.keys = StepKeys()
        self.observed: tuple[Hashable, ...] = ()  # keys of the observation dict
        self.counted_to = 0  # env step up to which observations have been counted

    def count_observations(self, env_t: int, agents: dict[Hashable, int], modules: dict[str, int]) -> None:
        """Count the observations up to `env_t` since the observed agents last changed."""
        if env_t > self.counted_to:
            count_steps(self.observed, env_t - self.counted_to, self.mapping, agents, modules)
            self.counted_to = env_t

    def go_on(
        self,
        order: list[Hashable],
        dropped: set[Hashable],
        live: dict[Hashable, int],
    ) -> None:
        """Start the next chunk with the agents of `order`; RLlib drops all other ended agents.

        Args:
            order: Agents of the next chunk.
            dropped: Agents whose module is also dropped by RLlib.
            live: Agent id -> lane of agents that have not ended.
        """
        known = set(dict.fromkeys(self.order).keys())  # in the order of the set in RLlib
        self.mapping = {agent_id: self.mapping[agent_id] for agent_id in known if agent_id not in dropped}
        self.module_of = {agent_id: self.module_of[agent_id] for agent_id in self.mapping if agent_id in self.module_of}
        self.order = order
        self.lane_of = {agent_id: live[agent_id] for agent_id in order if agent_id in live}
        self.carried = set(self.lane_of)
        self.finished = {agent_id: -1 for agent_id in order if agent_id not in live}
        for agent_id in self.agent_episode_ids.keys() - order:
            del self.agent_episode_ids[agent_id]
        self.flags, self.unseen, self.unobserved_rewards = {}, set(), {}
        self.keys.forget()
        if len(self.earlier) > MOST_CHUNKS and all(chunk.episode is None for chunk in self.earlier):
            self.earlier = [_joined(self.earlier)]


class RLlibLanes(LaneTable):
    """A lane table that assigns late rewards as RLlib does."""

    def lane_for_late_reward(self, env_index: int, agent_id: Hashable, reward: Any, *others: Any) -> int:
        """Return the lane for a reward of an agent that has finished or not been observed yet, or -1.

        The reward of a finished agent is added to its last transition if that is still in the chunk. A reward before
        the first observation belongs to no transition.
        """
        record = self.record(env_index)
        assert isinstance(record, RLlibRecord)
        lane = record.finished.get(agent_id, -1)
        if lane < 0:
            self.unattributed_reward += float(np.sum(reward))  # a reward may be an array with a single number
        if agent_id not in record.finished:
            record.unobserved_rewards[agent_id] = record.unobserved_rewards.get(agent_id, 0.0) + reward
        return lane

    def _finished_error(self, env_index: int, agent_id: Hashable, what: str) -> FinishedAgentError:
        problem = f"sent {what} after the agent had finished, which RLlib's episodes can't store; omit it from step()"
        return FinishedAgentError(env_index, agent_id, self.envs[env_index].env_t, problem)


def summed_up(chunks: list[ChunkNumbers], name_of: Callable[[Hashable], str]) -> EpisodeNumbers:
    """Sum up a finished episode in RLlib's order of addition: its last chunk, then the others in order."""
    *earlier, last = (chunk.up_to_date() for chunk in chunks)
    agent_returns: dict[str, Any] = {name_of(agent.agent_id): agent.total for agent in last.agents.values()}
    agent_steps = {name_of(key): agent.n_steps for key, agent in last.agents.items()}
    module_returns: dict[str, Any] = {}
    for agent in last.agents.values():
        module_returns[agent.module_id] = module_returns.get(agent.module_id, 0.0) + agent.total
    length, duration_s = last.length, last.duration_s
    episode_return = sum(agent.total for agent in last.agents.values())
    for chunk in earlier:
        length += chunk.length
        duration_s += chunk.duration_s
        episode_return += sum(agent.total for agent in chunk.agents.values())
        for agent in chunk.agents.values():
            name = name_of(agent.agent_id)
            agent_steps[name] = agent_steps.get(name, 0) + agent.n_steps
            agent_returns[name] = agent_returns.get(name, 0.0) + agent.total
            module_returns[agent.module_id] = module_returns.get(agent.module_id, 0.0) + agent.total
    return EpisodeNumbers(length, episode_return, duration_s, agent_returns, agent_steps, module_returns)


MOST_CHUNKS = 4096  # chunks of an episode whose numbers are kept separately, to be summed in RLlib's order


def _joined(chunks: list[ChunkNumbers]) -> ChunkNumbers:
    agents: dict[Hashable, AgentNumbers] = {}
    for agent in (agent for chunk in chunks for agent in chunk.agents.values()):
        known = agents.get(agent.agent_id, AgentNumbers(agent.agent_id, agent.module_id, 0, 0.0))
        steps, total = known.n_steps + agent.n_steps, known.total + agent.total
        agents[agent.agent_id] = AgentNumbers(agent.agent_id, agent.module_id, steps, total)
    return ChunkNumbers(sum(chunk.length for chunk in chunks), sum(chunk.duration_s for chunk in chunks), agents)
