"""Chunks of multi-agent episodes, as returned by `sample()`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Self

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.building import BuiltEpisode
from fastmarl.core.episodes.chunk import Chunk
from fastmarl.core.episodes.getters import AgentID
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import owned
from fastmarl.core.errors import EpisodeError
from fastmarl.core.objects.html_table import html_table
from fastmarl.core.objects.public import public

SAVED = (
    "id_", "env_t_started", "env_t", "lookback", "is_terminated", "is_truncated", "common_infos", "hanging_rewards",
    "custom_data", "agent_ids", "duration_s", "respawned", "reset_seed", "env_states",
)  # fmt: skip
SAVED_IF_BUILT = ("open_actions", "early_rewards")
MOST_SHOWN = 20  # agents, in a notebook


@public("fastmarl.episodes")
class MultiAgentEpisode(BuiltEpisode):
    """A chunk of one env's episode, from env step `env_t_started` to `env_t`.

    The getters take the same arguments as RLlib's, see `SingleAgentEpisode.get_observations()`, and return a dict by
    agent id:

    env_steps: If True, indices are env steps, 0 being `env_t_started`. Agents without an item at any of them are left
        out, or get `fill` for those steps. An action, its reward and its extra outputs belong to the env step of the
        observation that the action responds to. If False, indices are each agent's own steps.
    agent_ids: One id or a collection of ids; None means all in `agent_episodes`. Unknown ids are ignored.
    return_list: If True, return a list with one dict per env step; dicts of unrecorded steps are empty.

    A transition belongs to the chunk in which its last observation arrives. If the agent acted before `env_t_started`,
    the transition has a negative index.

    Runners create these episodes. You can also build one by hand: it starts empty or with the data you pass, and grows
    through `add_env_reset()` and `add_env_step()`. The getters of such an episode include unanswered actions of waiting
    agents.

    Args:
        id_: Episode id; None for a random one.
        observations: One dict by agent id per env step, starting with the lookback; None if there are none yet.
        observation_space: Observation spaces by agent id.
        infos: One dict by agent id per env step, like `observations`.
        actions: One dict by agent id for each env step between two observations.
        action_space: Action spaces by agent id.
        rewards: One dict by agent id per env step, like `actions`.
        terminateds: Flags by agent id, with the env's own under "__all__"; a bool sets only the latter.
        truncateds: Flags in the form of `terminateds`.
        extra_model_outputs: One dict by agent id per env step, like `actions`.
        env_t_started: Number of env steps before index 0.
        agent_t_started: Number of steps that each agent had made before index 0, by agent id.
        len_lookback_buffer: Number of env steps that are lookback; "auto" means all.
        agent_episode_ids: Known ids of agent episodes, by agent id.
        agent_module_ids: Known module ids, by agent id.
        agent_to_module_mapping_fn: Called as `fn(agent_id, episode)` for agents without a known module id; None maps
            all to "default_policy".

    Attributes:
        agent_episodes: Agent episodes by agent id, for agents with at least one transition in this chunk; if the
            episode is under way or built by hand, for all agents.
        chunk: The data; for an episode from a runner, it is read on first access.

    Raises:
        EpisodeError: If the data is inconsistent.
    """

    __slots__ = ()

    @classmethod
    def of_agents(cls, agent_episodes: dict[AgentID, SingleAgentEpisode], **fields: Any) -> Self:
        """Create a chunk from agent episodes.

        Args:
            agent_episodes: Agent episodes by agent id.
            fields: Other fields of `Chunk`. `id_`, `env_t_started` and `env_t` are required; others may be missing or
                None.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        return cls.of(Chunk(agent_episodes=agent_episodes, **{"agent_ids": list(agent_episodes), **given}))

    @property
    def agent_episode_ids(self) -> dict[AgentID, str]:
        return {agent: agent_episode.id_ for agent, agent_episode in self.agent_episodes.items()}

    @property
    def agent_t_started(self) -> dict[AgentID, int]:
        return {agent: agent_episode.t_started for agent, agent_episode in self.agent_episodes.items()}

    @property
    def custom_data(self) -> dict[str, Any]:
        return self.chunk.custom_data

    @property
    def is_reset(self) -> bool:
        return self.env_t > 0 or bool(self.chunk.agent_ids)

    def __len__(self) -> int:
        return self.env_t - self.env_t_started

    def __repr__(self) -> str:
        return (f"MultiAgentEpisode(id_={self.id_!r}, env_t={self.env_t_started}..{self.env_t}, "
                f"agents={len(self.agent_episodes)}, agent_steps={self.agent_steps()}, return={self.get_return():g}, "
                f"done={self.is_done})")  # fmt: skip

    def _repr_html_(self) -> str:
        ends = {(False, False): "", (True, False): "terminated", (False, True): "truncated", (True, True): "both"}
        rows = [
            (agent, each.module_id, len(each), f"{each.get_return():g}", ends[each.is_terminated, each.is_truncated])
            for agent, each in islice(self.agent_episodes.items(), MOST_SHOWN)
        ]
        more = len(self.agent_episodes) - len(rows)
        state = "done" if self.is_done else "not done"
        title = (
            f"Episode {self.id_}: env steps {self.env_t_started} to {self.env_t}, return {self.get_return():g}, {state}"
        )
        notes = [f"... and {more:,} more agents"] if more else []
        return html_table(("agent", "module", "steps", "return", "end"), rows, title=title, notes=notes)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Limit pickles and deep copies to this chunk's arrays, without the memory that they are part of."""
        chunk = self.chunk
        data = replace(
            chunk,
            agent_episodes=self.agent_episodes,
            lanes=None,
            waiting_infos=self.get_waiting_infos(),
            open_actions=self.open_actions() if chunk.is_under_way else chunk.open_actions,
            agent_to_module_mapping_fn=None if chunk.is_under_way else chunk.agent_to_module_mapping_fn,
            begun_at=None,
        )
        return None, {"_chunk": data}

    def agent_steps(self) -> int:
        """Return the number of transitions of all agents."""
        return sum(len(agent_episode) for agent_episode in self.agent_episodes.values())

    def get_duration_s(self) -> float:
        return self.chunk.duration_s

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Return the sum of all agents' rewards in this chunk.

        Rewards of waiting agents count when their transition ends, or now with `include_hanging_rewards`.
        """
        total = sum((agent_episode.get_return() for agent_episode in self.agent_episodes.values()), 0.0)
        chunk = self.chunk
        hanging = sum(chunk.hanging_rewards.values()) + sum(chunk.early_rewards.values())
        return total + hanging if include_hanging_rewards else total

    def get_common_infos(self) -> dict[int, dict[str, Any]]:
        """Return env step -> the env's `infos["__common__"]` of that step."""
        return self.chunk.common_infos

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Return flags by agent id, with the env's own under "__all__"."""
        flags = {agent: agent_episode.is_terminated for agent, agent_episode in self.agent_episodes.items()}
        return {**flags, "__all__": self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Return flags by agent id, with the env's own under "__all__" (RLlib puts its terminated flag there)."""
        flags = {agent: agent_episode.is_truncated for agent, agent_episode in self.agent_episodes.items()}
        return {**flags, "__all__": self.is_truncated}

    def get_agents_that_stepped(self) -> set[Any]:
        """Return the agents that had an observation at env step `env_t`."""
        chunk = self.chunk
        waiting = {
            agent for agent, agent_episode in self.agent_episodes.items() if agent_episode.env_ts()[-1] != chunk.env_t
        }
        return set(chunk.agent_ids) - waiting - chunk.hanging_rewards.keys() | set(chunk.respawned)

    def get_agents_to_act(self) -> set[Any]:
        """Return the agents observed at env step `env_t` that have not finished; none once the episode is done."""
        if self.is_done:
            return set()
        done = {agent for agent, agent_episode in self.agent_episodes.items() if agent_episode.is_done}
        return self.get_agents_that_stepped() - done | set(self.chunk.respawned)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> "MultiAgentEpisode":
        """Return consecutive env steps as views: the chunk that would exist if sampling had been cut there.

        Consecutive slices contain every transition exactly once, in the slice of its last observation. An agent's flags
        stay with its last observation, the env's flags with the last env step. Rewards that a waiting agent received
        before the end of a slice can't be separated, so its hanging reward is 0 unless the chunk ends there, too.

        Args:
            slice_: Slice of env steps, 0 being `env_t_started`. Its step must be 1 or None.
            len_lookback_buffer: Number of env steps of lookback to include, as far as available; None means this
                chunk's.
        """
        start, stop, lookback = self._bounds(slice_, len_lookback_buffer)
        begin, end = self.env_t_started + start, self.env_t_started + stop
        at_end = end == self.env_t
        agent_episodes, known, waiting = self._agent_episodes(begin, end, lookback)
        chunk, states, opened = self.chunk, self.env_states, None
        if self._is_built:
            opened = {agent: self._answered_at(agent, end) for agent in waiting if agent in agent_episodes}
            opened |= self.open_actions() if at_end else {}
        hanging = dict.fromkeys(waiting, 0.0)
        if at_end:
            known += [agent for agent in chunk.agent_ids if agent not in self.agent_episodes]
            hanging |= chunk.hanging_rewards
        return MultiAgentEpisode.of(
            replace(
                chunk,
                agent_episodes=agent_episodes,
                env_t_started=begin,
                env_t=end,
                lookback=lookback,
                is_terminated=chunk.is_terminated and at_end,
                is_truncated=chunk.is_truncated and at_end,
                common_infos={t: info for t, info in chunk.common_infos.items() if begin - lookback <= t <= end},
                waiting_infos={},
                hanging_rewards=hanging,
                custom_data=dict(chunk.custom_data),
                agent_ids=known,
                env_states=None
                if states is None
                else self._states_of(states, agent_episodes, known, begin - lookback, end),
                respawned=chunk.respawned if at_end else (),
                lanes=None,
                module_of={},
                open_actions=opened,
                early_rewards=dict(chunk.early_rewards) if at_end else {},
            )
        )

    @property
    def _is_built(self) -> bool:
        """True if agents without a transition, and unanswered actions, are included."""
        return self.chunk.open_actions is not None or self.chunk.is_under_way

    def _answered_at(self, agent: AgentID, end: int) -> tuple[Any, dict[str, Any]]:
        """Return (action, extra outputs) of the agent's transition that ends after env step `end` or is still open."""
        steps = self.agent_episodes[agent]
        row = int(np.searchsorted(steps.env_ts(), end, "right")) - 1 - steps.lookback
        if row >= len(steps):
            return self.open_actions()[agent]
        at: dict[str, Any] = {"indices": row, "neg_index_as_lookback": True}
        return steps.get_actions(**at), steps.get_extra_model_outputs(**at)

    def _agent_episodes(
        self, begin: int, end: int, lookback: int
    ) -> tuple[dict[AgentID, SingleAgentEpisode], list[Any], list[Any]]:
        """Return (agent episodes with transitions between two env steps, living agents, agents that wait at `end`)."""
        agent_episodes: dict[AgentID, SingleAgentEpisode] = {}
        known, waiting = [], []
        for agent, whole in self.agent_episodes.items():
            env_ts = whole.env_ts()
            first = max(int(np.searchsorted(env_ts, begin, "right")) - 1, 0)
            last = int(np.searchsorted(env_ts, end, "right")) - 1
            if last < 0 or (whole.is_done and env_ts[-1] <= begin):
                continue
            known.append(agent)
            if last > first or self._is_built:
                before = max(first - int(np.searchsorted(env_ts, begin - lookback)), 0)
                agent_episodes[agent] = whole.rows(first - before, last, before)
            if env_ts[last] < end and not (whole.is_done and last == len(env_ts) - 1):
                waiting.append(agent)
        return agent_episodes, known, waiting

    def concat_episode(self, other: "MultiAgentEpisode") -> None:
        """Append the chunk that follows; lookbacks of agents that are in both are dropped.

        Raises:
            EpisodeError: If `other` does not follow, an agent that finished here joins again there, or only one of them
                has env states; nothing changes then.
        """
        if self.id_ != other.id_ or self.is_done or self.env_t != other.env_t_started:
            raise EpisodeError(
                f"episode {self.id_!r}, env steps {self.env_t_started} to {self.env_t}, done={self.is_done}: can't be "
                f"followed by episode {other.id_!r}, env steps {other.env_t_started} to {other.env_t}"
            )
        chunk, next_, states = self.chunk, other.chunk, other.env_states
        if (chunk.env_states is None) != (states is None):
            raise EpisodeError(f"episode {self.id_!r}: a chunk with env states can't be joined with one without")
        joined = {agent: self.agent_episodes[agent] for agent in other.agent_episodes if agent in self.agent_episodes}
        for agent, agent_episode in joined.items():
            agent_episode.check_followed_by(other.agent_episodes[agent])
        for agent, agent_episode in joined.items():
            agent_episode.concat_episode(other.agent_episodes[agent])
        chunk.agent_ids = list(dict.fromkeys([*chunk.agent_ids, *next_.agent_ids]))
        chunk.agent_episodes = {**self.agent_episodes, **other.agent_episodes, **joined}
        if chunk.env_states is not None and states is not None:
            pieces = chunk.env_states if isinstance(chunk.env_states, list) else [chunk.env_states]
            chunk.env_states = [*pieces, states[len(states) - len(other) :]]
        chunk.env_t = next_.env_t
        chunk.is_terminated, chunk.is_truncated = next_.is_terminated, next_.is_truncated
        chunk.common_infos = {**chunk.common_infos, **next_.common_infos}
        chunk.hanging_rewards = dict(next_.hanging_rewards)
        chunk.duration_s, chunk.respawned = next_.duration_s, next_.respawned
        chunk.open_actions = None if next_.open_actions is None else dict(next_.open_actions)
        chunk.early_rewards = dict(next_.early_rewards)
        chunk.custom_data.update(next_.custom_data)

    def compact(self) -> None:
        """Copy this chunk's data out of its call's memory, so that it no longer keeps that memory alive.

        A chunk returned by a runner is a view of everything that its call recorded. The runner compacts chunks by
        itself if only a few of a call are kept. Arrays that getters have returned stay valid, and other threads may
        read the chunk meanwhile.
        """
        chunk, agent_episodes, states = self.chunk, self.agent_episodes, self.env_states
        chunk.waiting_infos = self.get_waiting_infos()
        chunk.lanes = None
        for agent_episode in agent_episodes.values():
            agent_episode.compact()
        chunk.env_states = None if states is None else owned(states)

    def finalize(self, drop_zero_len_single_agent_episodes: bool = False) -> "MultiAgentEpisode":
        """RLlib's former name for `to_numpy()`.

        Args:
            drop_zero_len_single_agent_episodes: Drop agents without a transition, which `sample()` never returns.
        """
        if drop_zero_len_single_agent_episodes:
            self.agent_episodes = {
                agent: agent_episode for agent, agent_episode in self.agent_episodes.items() if len(agent_episode)
            }
        return self

    def validate(self) -> None:
        """Raise EpisodeError if agents' columns are inconsistent or env states are missing."""
        if self.env_states is not None and len(self.env_states) <= len(self):
            raise EpisodeError(f"expected {len(self) + 1} or more env states, got {len(self.env_states)}")
        for agent, agent_episode in self.agent_episodes.items():
            agent_episode.validate()
            ends = agent_episode.env_ts()[agent_episode.lookback + 1 :]
            if not all(self.env_t_started < end <= self.env_t for end in ends.tolist()):
                raise EpisodeError(f"agent {agent!r}: transitions can't end at {ends.tolist()} in a chunk of env steps "
                                   f"{self.env_t_started} to {self.env_t}")  # fmt: skip

    def get_state(self) -> dict[str, Any]:
        """Return nested dicts of arrays (not copied), numbers and strings, without spaces and the mapping function."""
        return {
            **{name: getattr(self.chunk, name) for name in SAVED},
            "agent_episodes": [agent_episode.get_state() for agent_episode in self.agent_episodes.values()],
            "agent_ids": list(self.chunk.agent_ids),
            "respawned": list(self.chunk.respawned),
            "env_states": self.env_states,
            **({name: getattr(self.chunk, name) for name in SAVED_IF_BUILT} if self._is_built else {}),
        }

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        *,
        observation_space: Mapping[Any, gym.Space[Any]] | None = None,
        action_space: Mapping[Any, gym.Space[Any]] | None = None,
        agent_to_module_mapping_fn: Callable[[Any, "MultiAgentEpisode"], str] | None = None,
    ) -> Self:
        """Restore a chunk from the result of `get_state()`; arrays are not copied.

        Args:
            state: Result of `get_state()`.
            observation_space: Observation spaces by agent id.
            action_space: Action spaces by agent id.
            agent_to_module_mapping_fn: See the constructor.

        Raises:
            EpisodeError: If something is missing or inconsistent.
        """
        spaces: dict[str, Any] = {"observation_space": observation_space or {}, "action_space": action_space or {}}
        try:
            rest = {name: state[name] for name in SAVED} | {name: state.get(name) for name in SAVED_IF_BUILT}
            agent_episodes = {
                agent_episode["agent_id"]: SingleAgentEpisode.from_state(
                    agent_episode,
                    **{name: by_agent.get(agent_episode["agent_id"]) for name, by_agent in spaces.items()},
                )
                for agent_episode in state["agent_episodes"]
            }
        except KeyError as error:
            raise EpisodeError(f"the state of an episode lacks {error}") from error
        episode = cls.of_agents(
            agent_episodes=agent_episodes, agent_to_module_mapping_fn=agent_to_module_mapping_fn, **spaces, **rest
        )
        episode.validate()
        return episode
