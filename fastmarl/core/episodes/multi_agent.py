"""What `sample()` returns: chunks of episodes of many agents."""

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
from fastmarl.core.html_table import html_table
from fastmarl.core.public import public

SAVED = (
    "id_", "env_t_started", "env_t", "lookback", "is_terminated", "is_truncated", "common_infos", "hanging_rewards",
    "custom_data", "agent_ids", "duration_s", "respawned", "reset_seed", "env_states",
)  # fmt: skip
SAVED_IF_BUILT = ("open_actions", "early_rewards")
MOST_SHOWN = 20  # agents, in a notebook


@public("fastmarl.episodes")
class MultiAgentEpisode(BuiltEpisode):
    """What happened in one env from env step `env_t_started` to `env_t`.

    The getters have the arguments of RLlib's, see `SingleAgentEpisode`, and answer with a dict by agent:

    env_steps: True: indices are env steps, 0 being `env_t_started`; agents without an item at any of them are left out,
        or get `fill` for these steps. An action, its reward and the extra outputs belong to the env step at which the
        observation arrived that they answer to. False: indices are each agent's own steps.
    agent_ids: an id or a collection of them; None: all in `agent_episodes`. Unknown ids are ignored.
    return_list: a list of dicts, one for each env step (also for those that are not recorded: an empty dict).

    A transition belongs to the chunk in which its last observation arrives. If the agent acted before `env_t_started`,
    the transition is found at a negative index.

    A runner makes these; made by hand, one is empty, or has the data that it is given, and grows by `add_env_reset()`
    and `add_env_step()`. Until they are answered, actions of agents that wait are then shown, too.

    Args:
        id_: None: a random one.
        observations, infos: dicts by agent, one for each env step from the first one of the lookback on; None: none
            yet.
        actions, rewards, extra_model_outputs: dicts by agent, one for each env step between these.
        observation_space, action_space: by agent.
        terminateds, truncateds: flags by agent, and under "__all__" the env's, which alone may be given.
        env_t_started: env steps before index 0.
        agent_t_started: by agent, the steps that it had made before index 0.
        len_lookback_buffer: how many of the env steps are lookback; "auto": all.
        agent_episode_ids, agent_module_ids: by agent, as far as they are known.
        agent_to_module_mapping_fn: called as `fn(agent_id, episode)` for other agents; None: "default_policy" for all.

    Attributes:
        agent_episodes: by agent, of agents with at least one transition in this chunk; if the episode is under way or
            made by hand, of all agents.
        chunk: the data. Those of an episode from a runner are read on first access.

    Raises:
        EpisodeError: the data don't fit each other.
    """

    __slots__ = ()

    @classmethod
    def of_agents(cls, agent_episodes: dict[AgentID, SingleAgentEpisode], **fields: Any) -> Self:
        """The chunk of these agent episodes.

        Args:
            fields: the others of `Chunk`: `id_`, `env_t_started` and `env_t` must be given, others may be missing or
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
        """Pickles and deep copies hold this chunk's arrays only, not the memory they are part of."""
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
        """Transitions of all agents."""
        return sum(len(agent_episode) for agent_episode in self.agent_episodes.values())

    def get_duration_s(self) -> float:
        return self.chunk.duration_s

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Sum of all agents' rewards in this chunk; those paid to waiting agents count when their transition ends."""
        total = sum((agent_episode.get_return() for agent_episode in self.agent_episodes.values()), 0.0)
        chunk = self.chunk
        hanging = sum(chunk.hanging_rewards.values()) + sum(chunk.early_rewards.values())
        return total + hanging if include_hanging_rewards else total

    def get_common_infos(self) -> dict[int, dict[str, Any]]:
        """Env step -> the env's `infos["__common__"]` of that step."""
        return self.chunk.common_infos

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Flags by agent; "__all__": the env's own flag."""
        flags = {agent: agent_episode.is_terminated for agent, agent_episode in self.agent_episodes.items()}
        return {**flags, "__all__": self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Flags by agent; "__all__": the env's own flag (RLlib gives its terminated one)."""
        flags = {agent: agent_episode.is_truncated for agent, agent_episode in self.agent_episodes.items()}
        return {**flags, "__all__": self.is_truncated}

    def get_agents_that_stepped(self) -> set[Any]:
        """Agents that had an observation at env step `env_t`."""
        chunk = self.chunk
        waiting = {
            agent for agent, agent_episode in self.agent_episodes.items() if agent_episode.env_ts()[-1] != chunk.env_t
        }
        return set(chunk.agent_ids) - waiting - chunk.hanging_rewards.keys() | set(chunk.respawned)

    def get_agents_to_act(self) -> set[Any]:
        """Agents that had an observation at env step `env_t` and have not finished; none once the episode is done."""
        if self.is_done:
            return set()
        done = {agent for agent, agent_episode in self.agent_episodes.items() if agent_episode.is_done}
        return self.get_agents_that_stepped() - done | set(self.chunk.respawned)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> "MultiAgentEpisode":
        """Some consecutive env steps, as views: the chunk that would have been, had sampling been cut there.

        Every transition is in exactly one of several slices that follow each other: where the last observation is. An
        agent's flags stay with its last observation, the env's with the last env step. What a waiting agent was paid
        up to the end of the slice is not known, so its hanging reward is 0 unless the chunk ends there too.

        Args:
            len_lookback_buffer: env steps of lookback to take along, as far as there are; None: this chunk's.
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
        """True if agents without a transition, and actions without an answer, are shown."""
        return self.chunk.open_actions is not None or self.chunk.is_under_way

    def _answered_at(self, agent: AgentID, end: int) -> tuple[Any, dict[str, Any]]:
        """(action, extra outputs) of the transition of an agent that goes beyond an env step, or of none."""
        steps = self.agent_episodes[agent]
        row = int(np.searchsorted(steps.env_ts(), end, "right")) - 1 - steps.lookback
        if row >= len(steps):
            return self.open_actions()[agent]
        at: dict[str, Any] = {"indices": row, "neg_index_as_lookback": True}
        return steps.get_actions(**at), steps.get_extra_model_outputs(**at)

    def _agent_episodes(
        self, begin: int, end: int, lookback: int
    ) -> tuple[dict[AgentID, SingleAgentEpisode], list[Any], list[Any]]:
        """(agent episodes with transitions between two env steps; who lives there; who waits at `end`)."""
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
        """Add the chunk that follows; lookbacks of agents that are in both are left out.

        Raises:
            EpisodeError: `other` does not follow, or an agent that finished here has joined again there, or only one of
                them has env states. Nothing changed.
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
        """Copy this chunk's data out of its call's memory, so that nothing else is kept alive with it.

        A chunk as a runner returns it is a view of what its whole call has recorded. The runner compacts chunks by
        itself where few of a call are kept. Arrays that getters have returned stay what they are. Other threads may
        read the chunk meanwhile.
        """
        chunk, agent_episodes, states = self.chunk, self.agent_episodes, self.env_states
        chunk.waiting_infos = self.get_waiting_infos()
        chunk.lanes = None
        for agent_episode in agent_episodes.values():
            agent_episode.compact()
        chunk.env_states = None if states is None else owned(states)

    def finalize(self, drop_zero_len_single_agent_episodes: bool = False) -> "MultiAgentEpisode":
        """The old name of `to_numpy`; can also drop agents without a transition, which `sample()` never returns."""
        if drop_zero_len_single_agent_episodes:
            self.agent_episodes = {
                agent: agent_episode for agent, agent_episode in self.agent_episodes.items() if len(agent_episode)
            }
        return self

    def validate(self) -> None:
        """Raises EpisodeError if the agents' columns don't fit each other or the env steps, or env states lack."""
        if self.env_states is not None and len(self.env_states) <= len(self):
            raise EpisodeError(f"expected {len(self) + 1} or more env states, got {len(self.env_states)}")
        for agent, agent_episode in self.agent_episodes.items():
            agent_episode.validate()
            ends = agent_episode.env_ts()[agent_episode.lookback + 1 :]
            if not all(self.env_t_started < end <= self.env_t for end in ends.tolist()):
                raise EpisodeError(f"agent {agent!r}: transitions can't end at {ends.tolist()} in a chunk of env steps "
                                   f"{self.env_t_started} to {self.env_t}")  # fmt: skip

    def get_state(self) -> dict[str, Any]:
        """Nested dicts of arrays (not copied), numbers and strings; without spaces and the mapping function."""
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
        """The chunk whose `get_state` was called; the arrays are not copied.

        Args:
            observation_space, action_space: by agent.

        Raises:
            EpisodeError: something is missing, or does not fit.
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
