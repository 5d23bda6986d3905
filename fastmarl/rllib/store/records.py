"""What is known of a running episode by RLlib's rules: its agents in RLlib's order, its modules, its time.

The order of agents decides which random number an agent gets, so it is kept exactly as RLlib's dicts and sets would
have it: agents of the reset in the order of the observation dict, later ones in the order of a set of all agents that
the step named, and after a cut in the order in which the observations of the lookback window show them.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from fastmarl.core.errors import FinishedAgentError
from fastmarl.core.native._records import EpisodeRecord
from fastmarl.core.native._step_keys import StepKeys, count_steps
from fastmarl.core.store.lanes import LaneTable


@dataclass
class CallCounts:
    """The counts of one call of `sample()`.

    Counts by agent and by module are of observations, as RLlib's are: the steps in whose observation dict an agent was.
    No count in them is 0.
    """

    env_steps: int = 0
    agent_observations: dict[Hashable, int] = field(default_factory=dict)
    module_observations: dict[str, int] = field(default_factory=dict)
    episodes: int = 0  # that have ended
    step_failures: int = 0
    resets: int = 0  # of all envs at once, before the first tick
    ticks: int = 0  # steps of all envs at once
    forwards: int = 0  # ticks in which modules were asked
    lost_reward: float = 0.0  # sum of the rewards that belong to no transition
    lengths: list[int] = field(default_factory=list)  # per tick: sum of the lengths of the chunks under way after it
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Totals of the stages "connect", "forward", "act" and "env_step"."""


@dataclass(slots=True)
class EpisodeNumbers:
    """A finished episode in numbers, all its chunks taken together. Agents go by their names in the metrics."""

    length: int  # in env steps
    episode_return: float
    duration_s: float
    agent_returns: dict[str, float]
    agent_steps: dict[str, int]
    module_returns: dict[str, float]


@dataclass(frozen=True, slots=True)
class AgentNumbers:
    """One agent of a chunk in numbers."""

    agent_id: Hashable
    module_id: str
    n_steps: int
    total: Any

    def __len__(self) -> int:
        return self.n_steps

    def get_return(self) -> Any:
        """Sum of its rewards."""
        return self.total


@dataclass
class ChunkNumbers:
    """A chunk in numbers, for the metrics.

    RLlib's loop, if it takes over an episode, has these in the place of chunks that were returned before: they answer
    what RLlib's metrics ask.

    Attributes:
        agents: those with a completed step, in order.
    """

    length: int
    duration_s: float
    agents: list[AgentNumbers]

    @classmethod
    def of(cls, episode: Any) -> "ChunkNumbers":
        """Those of an episode of RLlib's."""
        agents = [
            AgentNumbers(
                agent_episode.agent_id, agent_episode.module_id, len(agent_episode), agent_episode.get_return()
            )
            for agent_episode in episode.agent_episodes.values()
        ]
        return cls(len(episode), episode.get_duration_s(), agents)

    def __len__(self) -> int:
        return self.length

    def get_return(self) -> Any:
        """Sum of all agents' rewards."""
        return sum(agent.total for agent in self.agents)

    def get_duration_s(self) -> float:
        """Seconds."""
        return self.duration_s

    @property
    def agent_episodes(self) -> dict[Hashable, AgentNumbers]:
        """By agent id."""
        return {agent.agent_id: agent for agent in self.agents}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} of a chunk that sample() returned before this callback was added: only len(), get_return(), "
            "get_duration_s() and agent_episodes are known of it; add callbacks before the first call of sample()"
        )


class RLlibRecord(EpisodeRecord):
    """One env's running episode."""

    def __init__(self, env_index: int, id_: str, started_at: float, new_id: Callable[[], str]):
        super().__init__(env_index, id_, started_at)
        self.order: list[Hashable] = []  # agents of the chunk; those that ended before it and RLlib still knows, too
        self.lane_of: dict[Hashable, int] = {}  # of the chunk
        self.mapping: dict[Hashable, str] = {}  # agent id -> module id
        self.ended_before: dict[Hashable, list[int]] = {}  # agents of `order` without a lane -> when they were observed
        # What RLlib still has of them: episode, buffer of times.
        self.ended_agent_episodes: dict[Hashable, tuple[Any, Any]] = {}
        self.joined: list[Hashable] = []  # agents without a lane as yet
        self.map_order: list[Hashable] = []  # agents of the lookback window, in the order of RLlib's time maps
        self.carried: set[Hashable] = set()  # agents of the chunk before that go on in this one
        # Ids of the agents' SingleAgentEpisodes, the same in all chunks.
        self.agent_episode_ids: defaultdict[Hashable, str] = defaultdict(new_id)
        self.flags: dict[int, tuple[Any, Any]] = {}  # ended lane -> (terminated, truncated) as the env gave them
        self.unseen: set[int] = set()  # lanes that ended without an observation
        self.earlier: list[ChunkNumbers] = []
        self.paid_early: dict[Hashable, Any] = {}  # in this chunk, before an agent's first observation
        self.is_terminated: Any = False
        self.is_truncated: Any = False
        self.has_flags = False  # whether they are the env's
        self.last_step_at: float | None = None  # set when the chunk ends
        self.awaits_reset = True  # what its env says next are its first observations
        self.keys = StepKeys()
        self.observed: tuple[Hashable, ...] = ()  # keys of the observation dict
        self.counted_to = 0  # env step; those after it, with these keys, have not been counted yet

    def count_observations(self, env_t: int, agents: dict[Hashable, int], modules: dict[str, int]) -> None:
        """Add the steps up to `env_t` since the observed agents last changed."""
        if env_t > self.counted_to:
            count_steps(self.observed, env_t - self.counted_to, self.mapping, agents, modules)
            self.counted_to = env_t

    def go_on(
        self,
        order: list[Hashable],
        dropped: set[Hashable],
        live: dict[Hashable, int],
    ) -> None:
        """Begin the next chunk with the agents of `order`; RLlib has forgotten all others that ended.

        Args:
            dropped: those whose module RLlib has forgotten, too.
            live: agent id -> lane.
        """
        known = set(dict.fromkeys(self.order).keys())  # in the order of RLlib's set
        self.mapping = {agent_id: self.mapping[agent_id] for agent_id in known if agent_id not in dropped}
        self.module_of = {agent_id: self.module_of[agent_id] for agent_id in self.mapping if agent_id in self.module_of}
        self.order = order
        self.lane_of = {agent_id: live[agent_id] for agent_id in order if agent_id in live}
        self.carried = set(self.lane_of)
        self.finished = {agent_id: -1 for agent_id in order if agent_id not in live}
        for agent_id in self.agent_episode_ids.keys() - order:
            del self.agent_episode_ids[agent_id]
        self.flags, self.unseen, self.paid_early = {}, set(), {}
        self.keys.forget()
        if len(self.earlier) > MOST_CHUNKS:
            self.earlier = [_joined(self.earlier)]


class RLlibLanes(LaneTable):
    """Lanes whose late rewards go by RLlib's rules."""

    def lane_for_late_reward(self, env_index: int, agent_id: Hashable, reward: Any) -> int:
        """A finished agent is paid for its last transition while that is at hand; one not seen yet for none."""
        record = self.record(env_index)
        assert isinstance(record, RLlibRecord)
        lane = record.finished.get(agent_id, -1)
        if lane < 0:
            self.unattributed_reward += float(reward)
        if agent_id not in record.finished:
            record.paid_early[agent_id] = record.paid_early.get(agent_id, 0.0) + reward
        return lane

    def _finished_error(self, env_index: int, agent_id: Hashable, what: str) -> FinishedAgentError:
        problem = (
            f"sent {what} after the agent had finished, for which RLlib's episodes have no place; drop it from step()"
        )
        return FinishedAgentError(env_index, agent_id, self.envs[env_index].env_t, problem)


def summed_up(chunks: list[ChunkNumbers], name_of: Callable[[Hashable], str]) -> EpisodeNumbers:
    """A finished episode in numbers, added up in RLlib's order: its last chunk, then the others from the first on."""
    *earlier, last = chunks
    agent_returns: dict[str, Any] = {name_of(agent.agent_id): agent.total for agent in last.agents}
    agent_steps = {name_of(agent.agent_id): agent.n_steps for agent in last.agents}
    module_returns: dict[str, Any] = {}
    for agent in last.agents:
        module_returns[agent.module_id] = module_returns.get(agent.module_id, 0.0) + agent.total
    length, duration_s, episode_return = last.length, last.duration_s, last.get_return()
    for chunk in earlier:
        length += chunk.length
        duration_s += chunk.duration_s
        episode_return += chunk.get_return()
        for agent in chunk.agents:
            name = name_of(agent.agent_id)
            agent_steps[name] = agent_steps.get(name, 0) + agent.n_steps
            agent_returns[name] = agent_returns.get(name, 0.0) + agent.total
            module_returns[agent.module_id] = module_returns.get(agent.module_id, 0.0) + agent.total
    return EpisodeNumbers(length, episode_return, duration_s, agent_returns, agent_steps, module_returns)


MOST_CHUNKS = 4096  # of an episode whose numbers are kept one by one, to be summed in RLlib's order


def _joined(chunks: list[ChunkNumbers]) -> ChunkNumbers:
    agents: dict[Hashable, AgentNumbers] = {}
    for agent in (agent for chunk in chunks for agent in chunk.agents):
        known = agents.get(agent.agent_id, AgentNumbers(agent.agent_id, agent.module_id, 0, 0.0))
        steps, total = known.n_steps + agent.n_steps, known.total + agent.total
        agents[agent.agent_id] = AgentNumbers(agent.agent_id, agent.module_id, steps, total)
    return ChunkNumbers(
        sum(chunk.length for chunk in chunks), sum(chunk.duration_s for chunk in chunks), [*agents.values()]
    )
