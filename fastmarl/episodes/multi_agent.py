"""What `sample()` returns: chunks of episodes of many agents."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from fastmarl.episodes.getters import AgentID, Getters
from fastmarl.episodes.single_agent import SingleAgentEpisode as SingleAgentEpisode
from fastmarl.episodes.sources import ArraySource as ArraySource
from fastmarl.episodes.sources import own
from fastmarl.errors import EpisodeError
from fastmarl.locks import ProcessLock

SAVED = (
    "id_", "env_t_started", "env_t", "lookback", "is_terminated", "is_truncated", "common_infos", "hanging_rewards",
    "custom_data", "agent_ids", "duration_s", "respawned", "reset_seed",
    "env_states",
)  # fmt: skip

_making_parts = ProcessLock()


class MultiAgentEpisode(Getters):
    """What happened in one env from env step `env_t_started` to `env_t`.

    The getters have the arguments of RLlib's, see `SingleAgentEpisode`, and answer with a dict by agent:

    env_steps: True: indices are env steps, 0 being `env_t_started`; agents without an item at any of them are left out,
        or get `fill` for these steps. An action, its reward and the extra outputs belong to the env step at which the
        observation arrived that they answer to. False: indices are each agent's own steps.
    agent_ids: an id or a collection of them; None: all in `agent_episodes`. Unknown ids are ignored.
    return_list: a list of dicts, one for each env step (also for those that are not recorded: an empty dict).

    A transition belongs to the chunk in which its last observation arrives. If the agent acted before `env_t_started`,
    the transition is found at a negative index.

    Args:
        id_: the same for all chunks of an episode.
        agent_episodes: the agents' parts, of agents with at least one transition in this chunk; or what makes them,
            called when they are first asked for.
        lookback: env steps before `env_t_started` that can be looked at with negative indices.
        is_terminated, is_truncated: the env's own `__all__` flags. An agent's own end is in its part only.
        agent_to_module_mapping_fn: called as `fn(agent_id, episode)` for agents that have no part yet.
        observation_space, action_space: by agent.
        common_infos: the env's `infos["__common__"]` by env step.
        waiting_infos: called by `get_waiting_infos()`.
        hanging_rewards: by waiting agent (it has acted, and has not had an observation since): what it was paid since.
        custom_data: anything a user keeps with the episode; the chunks that follow get it too.
        agent_ids: agents that are known to live in this chunk, also those without a transition in it.
        env_states: the env's global states at consecutive env steps, the last at `env_t`, [n, ...] with n above the
            chunk's length: those of the lookback, and of earlier steps upon which a waiting agent acted, come first.
        duration_s: seconds since the episode's begin.
        reset_seed: what the env was reset with, if that decides all that is random in the episode: with it and the
            actions the env makes the same episode again. None: the runner has no seed, or the env shares a generator.
        respawned: agents whose trajectory has ended in this chunk, and that begin another at `env_t`.
    """

    __slots__ = (
        "_agent_episodes",
        "_common_infos",
        "_custom_data",
        "_duration_s",
        "_env_states",
        "_hanging_rewards",
        "_known_agents",
        "_make_parts",
        "_module_of",
        "_respawned",
        "_waiting_infos",
        "action_space",
        "agent_to_module_mapping_fn",
        "env_t",
        "env_t_started",
        "id_",
        "is_terminated",
        "is_truncated",
        "lookback",
        "observation_space",
        "reset_seed",
    )

    def __init__(
        self,
        *,
        id_: str,
        agent_episodes: dict[AgentID, SingleAgentEpisode] | Callable[[], dict[AgentID, SingleAgentEpisode]],
        env_t_started: int,
        env_t: int,
        lookback: int = 0,
        is_terminated: bool = False,
        is_truncated: bool = False,
        agent_to_module_mapping_fn: Callable[[Any, "MultiAgentEpisode"], str] | None = None,
        observation_space: Mapping[Any, gym.Space[Any]] | None = None,
        action_space: Mapping[Any, gym.Space[Any]] | None = None,
        common_infos: dict[int, dict[str, Any]] | None = None,
        waiting_infos: Callable[[], dict[AgentID, dict[int, dict[str, Any]]]] | None = None,
        hanging_rewards: dict[AgentID, float] | None = None,
        custom_data: dict[str, Any] | None = None,
        agent_ids: Collection[AgentID] | None = None,
        env_states: np.ndarray | None = None,
        duration_s: float = 0.0,
        respawned: Collection[AgentID] = (),
        reset_seed: int | None = None,
    ):
        self.id_ = id_
        self._make_parts = agent_episodes if callable(agent_episodes) else None
        self._agent_episodes = None if callable(agent_episodes) else agent_episodes
        self.env_t_started = env_t_started
        self.env_t = env_t
        self.lookback = lookback
        self.is_terminated = is_terminated
        self.is_truncated = is_truncated
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self.observation_space = observation_space or {}
        self.action_space = action_space or {}
        self._common_infos = {} if common_infos is None else common_infos
        self._waiting_infos = waiting_infos
        self._hanging_rewards = {} if hanging_rewards is None else hanging_rewards
        self._custom_data = {} if custom_data is None else custom_data
        self._known_agents = list(self.agent_episodes) if agent_ids is None else agent_ids
        self._duration_s = duration_s
        self._respawned = tuple(respawned)
        self.reset_seed = reset_seed
        self._env_states = None if env_states is None else [env_states]  # consecutive pieces
        self._module_of: dict[AgentID, str] = {}

    @property
    def agent_episodes(self) -> dict[AgentID, SingleAgentEpisode]:
        """Agent id -> its part, of agents with at least one transition in this chunk."""
        parts = self._agent_episodes
        if parts is None:
            parts = _making_parts.run(self._made_parts)
        return parts

    @agent_episodes.setter
    def agent_episodes(self, parts: dict[AgentID, SingleAgentEpisode]) -> None:
        self._agent_episodes = parts

    def _made_parts(self) -> dict[AgentID, SingleAgentEpisode]:
        if self._agent_episodes is None:
            assert self._make_parts is not None
            self._agent_episodes = self._make_parts()
        return self._agent_episodes

    @property
    def agent_ids(self) -> set[Any]:
        """The keys of `agent_episodes`."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        return {agent: part.id_ for agent, part in self.agent_episodes.items()}

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        return {agent: part.t_started for agent, part in self.agent_episodes.items()}

    @property
    def custom_data(self) -> dict[str, Any]:
        return self._custom_data

    @property
    def is_done(self) -> bool:
        return self.is_terminated or self.is_truncated

    @property
    def is_reset(self) -> bool:
        return self.env_t > 0 or bool(self._known_agents)

    @property
    def is_numpy(self) -> bool:
        return True

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    def __repr__(self) -> str:
        return (f"MultiAgentEpisode(id_={self.id_!r}, env_t={self.env_t_started}..{self.env_t}, "
                f"agents={len(self.agent_episodes)}, agent_steps={self.agent_steps()}, return={self.get_return():g}, "
                f"done={self.is_done})")  # fmt: skip

    def __getitem__(self, item: slice) -> "MultiAgentEpisode":
        if not isinstance(item, slice):
            raise NotImplementedError(f"an episode can be sliced, as in episode[2:5], but not indexed with {item!r}")
        return self.slice(item)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Pickles and deep copies hold this chunk's arrays only, not the memory they are part of."""
        slots = {name: getattr(self, name) for name in self.__slots__}
        waiting_infos: Callable[..., Any] = partial(dict, self.get_waiting_infos())
        return None, {
            **slots, "_agent_episodes": self.agent_episodes, "_make_parts": None, "_waiting_infos": waiting_infos
        }  # fmt: skip

    def env_steps(self) -> int:
        return len(self)

    def agent_steps(self) -> int:
        """Transitions of all agents."""
        return sum(len(part) for part in self.agent_episodes.values())

    def get_duration_s(self) -> float:
        return self._duration_s

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Sum of all agents' rewards in this chunk; those paid to waiting agents count when their transition ends."""
        total = sum((part.get_return() for part in self.agent_episodes.values()), 0.0)
        return total + sum(self._hanging_rewards.values()) if include_hanging_rewards else total

    def get_waiting_infos(self) -> dict[AgentID, dict[int, dict[str, Any]]]:
        """Agent -> env step -> info, of steps in which an agent had an info and no observation: `get_infos()` has one
        info for each observation. Only in episodes that a runner returned, not in slices of them."""
        return {} if self._waiting_infos is None else self._waiting_infos()

    def get_common_infos(self) -> dict[int, dict[str, Any]]:
        """Env step -> the env's `infos["__common__"]` of that step."""
        return self._common_infos

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Flags by agent; "__all__": the env's own flag."""
        flags = {agent: part.is_terminated for agent, part in self.agent_episodes.items()}
        return {**flags, "__all__": self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Flags by agent; "__all__": the env's own flag (RLlib gives its terminated one)."""
        flags = {agent: part.is_truncated for agent, part in self.agent_episodes.items()}
        return {**flags, "__all__": self.is_truncated}

    def get_agents_that_stepped(self) -> set[Any]:
        """Agents that had an observation at env step `env_t`."""
        waiting = {agent for agent, part in self.agent_episodes.items() if part.env_ts()[-1] != self.env_t}
        return set(self._known_agents) - waiting - self._hanging_rewards.keys() | set(self._respawned)

    def get_agents_to_act(self) -> set[Any]:
        """Agents that had an observation at env step `env_t` and have not finished; none once the episode is done."""
        if self.is_done:
            return set()
        done = {agent for agent, part in self.agent_episodes.items() if part.is_done}
        return self.get_agents_that_stepped() - done | set(self._respawned)

    def module_for(self, agent_id: AgentID) -> str:
        """The module that acts for an agent; asks the mapping function once.

        Raises:
            KeyError: the agent has no part in this chunk, and there is no mapping function.
        """
        if agent_id not in self._module_of:
            part = self.agent_episodes.get(agent_id)
            if part is not None and part.module_id is not None:
                self._module_of[agent_id] = part.module_id
            elif self.agent_to_module_mapping_fn is None:
                raise KeyError(f"agent {agent_id!r} has no transition in this chunk, and there is no mapping function")
            else:
                self._module_of[agent_id] = self.agent_to_module_mapping_fn(agent_id, self)
        return self._module_of[agent_id]

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> "MultiAgentEpisode":
        """Some consecutive env steps, as views: the chunk that would have been, had sampling been cut there.

        Every transition is in exactly one of several slices that follow each other: where the last observation is. An
        agent's flags stay with its last observation, the env's with the last env step. What a waiting agent was paid
        up to the end of the slice is not known, so its hanging reward is 0 unless the chunk ends there too.

        Args:
            len_lookback_buffer: env steps of lookback to take along, as far as there are; None: this chunk's.
        """
        if slice_.step not in (None, 1):
            raise NotImplementedError(f"an episode can't be sliced with a step of {slice_.step}; only 1")
        start, stop, _ = slice_.indices(len(self))
        begin, end = self.env_t_started + start, self.env_t_started + max(start, stop)
        wanted = self.lookback if len_lookback_buffer is None else len_lookback_buffer
        lookback = min(wanted, self.lookback + start)
        at_end = end == self.env_t
        parts, known, waiting = self._parts(begin, end, lookback)
        states = self.env_states
        hanging = dict.fromkeys(waiting, 0.0)
        if at_end:
            known += [agent for agent in self._known_agents if agent not in self.agent_episodes]
            hanging |= self._hanging_rewards
        return MultiAgentEpisode(
            id_=self.id_,
            agent_episodes=parts,
            env_t_started=begin,
            env_t=end,
            lookback=lookback,
            is_terminated=self.is_terminated and at_end,
            is_truncated=self.is_truncated and at_end,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
            observation_space=self.observation_space,
            action_space=self.action_space,
            common_infos={t: info for t, info in self._common_infos.items() if begin - lookback <= t <= end},
            hanging_rewards=hanging,
            custom_data=dict(self._custom_data),
            agent_ids=known,
            env_states=None if states is None else self._states_of(states, parts, known, begin - lookback, end),
            duration_s=self._duration_s,
            respawned=self._respawned if at_end else (),
            reset_seed=self.reset_seed,
        )

    def _parts(
        self, begin: int, end: int, lookback: int
    ) -> tuple[dict[AgentID, SingleAgentEpisode], list[Any], list[Any]]:
        """(the agents' parts with transitions between two env steps; who lives there; who waits at `end`)."""
        parts: dict[AgentID, SingleAgentEpisode] = {}
        known, waiting = [], []
        for agent, whole in self.agent_episodes.items():
            env_ts = whole.env_ts()
            first = max(int(np.searchsorted(env_ts, begin, "right")) - 1, 0)
            last = int(np.searchsorted(env_ts, end, "right")) - 1
            if last < 0 or (whole.is_done and env_ts[-1] <= begin):
                continue
            known.append(agent)
            if last > first:
                before = max(first - int(np.searchsorted(env_ts, begin - lookback)), 0)
                parts[agent] = whole.part(first - before, last, before)
            if env_ts[last] < end and not (whole.is_done and last == len(env_ts) - 1):
                waiting.append(agent)
        return parts, known, waiting

    def concat_episode(self, other: "MultiAgentEpisode") -> None:
        """Add the chunk that follows; lookbacks of agents that are in both are left out.

        Raises:
            EpisodeError: `other` does not follow, or an agent that finished here has come again there, or only one of
                them has env states. Nothing changed.
        """
        if self.id_ != other.id_ or self.is_done or self.env_t != other.env_t_started:
            raise EpisodeError(
                f"episode {self.id_!r}, env steps {self.env_t_started} to {self.env_t}, done={self.is_done}: can't be "
                f"followed by episode {other.id_!r}, env steps {other.env_t_started} to {other.env_t}"
            )
        if (self._env_states is None) != (other._env_states is None):
            raise EpisodeError(f"episode {self.id_!r}: a chunk with env states can't be joined with one without")
        joined = {agent: self.agent_episodes[agent] for agent in other.agent_episodes if agent in self.agent_episodes}
        for agent, part in joined.items():
            part.check_followed_by(other.agent_episodes[agent])
        for agent, part in joined.items():
            part.concat_episode(other.agent_episodes[agent])
        self._known_agents = list(dict.fromkeys([*self._known_agents, *other._known_agents]))
        self.agent_episodes = {**self.agent_episodes, **other.agent_episodes, **joined}
        if self._env_states is not None and other.env_states is not None:
            self._env_states.append(other.env_states[len(other.env_states) - len(other) :])
        self.env_t = other.env_t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._common_infos = {**self._common_infos, **other._common_infos}
        self._hanging_rewards = dict(other._hanging_rewards)
        self._duration_s = other._duration_s
        self._respawned = other._respawned
        self._custom_data.update(other._custom_data)

    def compact(self) -> None:
        """Own exactly this chunk's data, so that nothing else is kept alive with it.

        A chunk as a runner returns it is a view of what its whole call has recorded. The runner compacts chunks by
        itself where few are kept of a call. Arrays that getters have returned stay what they are. Other threads may
        read the chunk meanwhile.
        """
        parts, pieces = self.agent_episodes, self._env_states or []
        if self._waiting_infos is not None:
            self._waiting_infos = partial(dict, self._waiting_infos())
        self._make_parts = None
        for part in parts.values():
            part.compact()
        for i, piece in enumerate(pieces):
            pieces[i] = own(piece)

    def to_numpy(self) -> "MultiAgentEpisode":
        """Itself: the columns are arrays from the start."""
        return self

    def finalize(self, drop_zero_len_single_agent_episodes: bool = False) -> "MultiAgentEpisode":
        """The old name of `to_numpy`; can also drop agents without a transition, which `sample()` never returns."""
        if drop_zero_len_single_agent_episodes:
            self.agent_episodes = {agent: part for agent, part in self.agent_episodes.items() if len(part)}
        return self

    def validate(self) -> None:
        """Raises EpisodeError if the agents' columns don't fit each other or the env steps, or env states lack."""
        if self.env_states is not None and len(self.env_states) <= len(self):
            raise EpisodeError(f"expected {len(self) + 1} or more env states, got {len(self.env_states)}")
        for agent, part in self.agent_episodes.items():
            part.validate()
            ends = part.env_ts()[part.lookback + 1 :]
            if not all(self.env_t_started < end <= self.env_t for end in ends.tolist()):
                raise EpisodeError(f"agent {agent!r}: transitions can't end at {ends.tolist()} in a chunk of env steps "
                                   f"{self.env_t_started} to {self.env_t}")  # fmt: skip

    def get_state(self) -> dict[str, Any]:
        """Nested dicts of arrays (not copied), numbers and strings; without spaces and the mapping function."""
        return {
            "id_": self.id_,
            "agent_episodes": [part.get_state() for part in self.agent_episodes.values()],
            "agent_ids": list(self._known_agents),
            "env_t_started": self.env_t_started,
            "env_t": self.env_t,
            "lookback": self.lookback,
            "is_terminated": self.is_terminated,
            "is_truncated": self.is_truncated,
            "common_infos": self._common_infos,
            "hanging_rewards": self._hanging_rewards,
            "custom_data": self._custom_data,
            "duration_s": self._duration_s,
            "respawned": list(self._respawned),
            "reset_seed": self.reset_seed,
            "env_states": self.env_states,
        }

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        *,
        observation_space: Mapping[Any, gym.Space[Any]] | None = None,
        action_space: Mapping[Any, gym.Space[Any]] | None = None,
        agent_to_module_mapping_fn: Callable[[Any, "MultiAgentEpisode"], str] | None = None,
    ) -> "MultiAgentEpisode":
        """The chunk of which `get_state` was called; the arrays are not copied.

        Args:
            observation_space, action_space: by agent.

        Raises:
            EpisodeError: something is missing, or does not fit.
        """
        spaces: dict[str, Any] = {"observation_space": observation_space or {}, "action_space": action_space or {}}
        try:
            rest = {name: state[name] for name in SAVED}
            parts = {
                part["agent_id"]: SingleAgentEpisode.from_state(
                    part, **{name: by_agent.get(part["agent_id"]) for name, by_agent in spaces.items()}
                )
                for part in state["agent_episodes"]
            }
        except KeyError as error:
            raise EpisodeError(f"the state of an episode lacks {error}") from error
        episode = cls(agent_episodes=parts, agent_to_module_mapping_fn=agent_to_module_mapping_fn, **spaces, **rest)
        episode.validate()
        return episode
