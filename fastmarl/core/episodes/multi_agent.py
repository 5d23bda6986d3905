"""Chunks of multi-agent episodes: building step by step or from lists, editing, slicing and concatenation."""

import copy
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import gymnasium as gym
import numpy as np

from fastmarl.core.episodes.building import to_default_module
from fastmarl.core.episodes.chunk import Chunk
from fastmarl.core.episodes.growing import GrowingSource
from fastmarl.core.episodes.indices import Indices
from fastmarl.core.episodes.queries import AgentEpisodes, AgentID
from fastmarl.core.episodes.readable import ReadableEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode
from fastmarl.core.episodes.sources import as_reward
from fastmarl.core.errors import EpisodeError
from fastmarl.core.objects.public import public

AgentDict = Mapping[Any, Any]  # keyed by agent id
Flags = AgentDict | bool
ALL, COMMON = "__all__", "__common__"


@public("fastmarl.episodes")
class MultiAgentEpisode(ReadableEpisode):
    """A chunk of an episode, from env step `env_t_started` to `env_t`.

    The getters accept the same arguments as in RLlib; see `get_observations()`.

    A transition belongs to the chunk in which its last observation arrives. If the agent acted before `env_t_started`,
    the index of the transition is negative.

    Runners create these episodes. You can also build one by hand: it starts empty or with the data you pass;
    `add_env_reset()` and `add_env_step()` extend it. The getters of such an episode include the pending actions of
    waiting agents.

    Args:
        id_: Episode id; None for a random one.
        observations: One dict (agent id -> observation) per env step, including the lookback; None for an empty
            episode.
        observation_space: Dict of agent id -> observation space.
        infos: One dict (agent id -> info) per env step, like `observations`.
        actions: One dict (agent id -> action) per env step except the last.
        action_space: Dict of agent id -> action space.
        rewards: One dict (agent id -> reward) per env step, like `actions`.
        terminateds: Dict of agent id -> flag, with the env's flag under "__all__"; a bool sets only the latter.
        truncateds: Flags, in the same form as `terminateds`.
        extra_model_outputs: One dict (agent id -> outputs) per env step, like `actions`.
        env_t_started: Number of env steps before index 0.
        agent_t_started: Dict of agent id -> number of steps that the agent made before index 0.
        len_lookback_buffer: Number of env steps that are lookback; "auto" means all.
        agent_episode_ids: Dict of agent id -> agent episode id; may be incomplete.
        agent_module_ids: Dict of agent id -> module id; may be incomplete.
        agent_to_module_mapping_fn: Called as `fn(agent_id, episode)` for agents whose module id is unknown; None maps
            them to "default_policy".

    Attributes:
        agent_episodes: Dict of agent id -> agent episode, for agents with at least one transition in this chunk, or for
            all agents if the episode is running or built by hand.
        chunk: The data; if a runner created the episode, it is read on first access.

    Raises:
        EpisodeError: If the data is inconsistent.
    """

    __slots__ = ()

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[AgentDict] | None = None,
        observation_space: Mapping[Any, gym.Space[Any]] | None = None,
        infos: Sequence[AgentDict] | None = None,
        actions: Sequence[AgentDict] | None = None,
        action_space: Mapping[Any, gym.Space[Any]] | None = None,
        rewards: Sequence[AgentDict] | None = None,
        terminateds: Flags = False,
        truncateds: Flags = False,
        extra_model_outputs: Sequence[AgentDict] | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[AgentID, int] | None = None,
        len_lookback_buffer: int | str = "auto",
        agent_episode_ids: Mapping[AgentID, str] | None = None,
        agent_module_ids: Mapping[AgentID, str] | None = None,
        agent_to_module_mapping_fn: Callable[[Any, Any], str] | None = None,
    ):
        n_steps = len(rewards or ())
        lookback = n_steps if len_lookback_buffer == "auto" else int(len_lookback_buffer)
        begin = env_t_started or 0
        ends: dict[str, AgentDict] = {
            "terminated": {ALL: terminateds} if isinstance(terminateds, bool) else terminateds,
            "truncated": {ALL: truncateds} if isinstance(truncateds, bool) else truncateds,
        }
        chunk = self._chunk = Chunk(
            id_=id_ or uuid.uuid4().hex,
            env_t_started=begin,
            env_t=begin + n_steps - lookback,
            agent_episodes={},
            lookback=lookback,
            is_terminated=bool(ends["terminated"].get(ALL)),
            is_truncated=bool(ends["truncated"].get(ALL)),
            agent_to_module_mapping_fn=agent_to_module_mapping_fn or to_default_module,
            observation_space=observation_space or {},
            action_space=action_space or {},
            agent_ids=[],
            open_actions={},
            module_of=dict(agent_module_ids or {}),
        )
        nothing: AgentDict = {}
        columns: list[Any] = [[] if column is None else column for column in (infos, actions, rewards)]
        outputs = extra_model_outputs or ()
        for i, observed in enumerate(observations or ()):
            info, acted, rewarded = (column[i] if i < len(column) else nothing for column in columns)
            self._take_step(
                begin - lookback + i, observed, info, acted, rewarded, outputs[i] if i < len(outputs) else {}
            )
        for agent, steps in (chunk.agent_episodes or {}).items():
            steps._id = (agent_episode_ids or {}).get(agent)
            steps.t_started = (agent_t_started or {}).get(agent, 0)
            steps.lookback = max(int(np.searchsorted(steps.env_ts(), begin, "right")) - 1, 0)
            has_acted = agent in self._opened() or steps.env_ts()[-1] == begin - lookback + n_steps
            steps.is_terminated = bool(ends["terminated"].get(agent)) or not (has_acted or ends["truncated"].get(agent))
            steps.is_truncated = bool(ends["truncated"].get(agent))
        self.validate()

    def _take_step(
        self,
        env_t: int,
        observed: AgentDict,
        infos: AgentDict,
        acted: AgentDict,
        rewarded: AgentDict,
        outputs: AgentDict,
    ) -> None:
        """Add an env step from the constructor's lists: observations, the actions taken on them, and the rewards."""
        opened, hanging = self._opened(), self.chunk.hanging_rewards
        for agent, observation in observed.items():
            if agent not in self.agent_episodes:
                self._join(agent, observation, env_t, infos.get(agent))
            elif agent not in opened:
                raise EpisodeError(f"episode {self.id_!r}, agent {agent!r}: observed again at env step {env_t} without "
                                   f"an action on its previous observation")  # fmt: skip
            else:
                action, extras = opened.pop(agent)
                self.agent_episodes[agent].add(
                    observation, env_t, infos.get(agent), action, hanging.pop(agent, 0.0), extras
                )
            if agent in acted:
                opened[agent] = acted[agent], dict(outputs.get(agent) or {})
        for agent in opened:
            hanging[agent] = hanging.get(agent, 0.0) + float(rewarded.get(agent) or 0.0)

    def _opened(self) -> dict[AgentID, tuple[Any, dict[str, Any]]]:
        opened = self.chunk.open_actions
        assert opened is not None
        return opened

    def _join(self, agent: AgentID, observation: Any, env_t: int, info: dict[str, Any] | None) -> None:
        """Start the episode of an agent with its first observation."""
        chunk = self.chunk
        steps = SingleAgentEpisode.of(
            agent_id=agent,
            module_id=self.module_for(agent),
            multi_agent_episode_id=self.id_,
            observation_space=chunk.observation_space.get(agent),
            action_space=chunk.action_space.get(agent),
            source=GrowingSource(),
            lookback=0,
            t_started=0,
        )
        steps.begin(observation, env_t, info)
        self.agent_episodes[agent] = steps
        chunk.agent_ids = [*chunk.agent_ids, agent]

    # Adding steps

    def add_env_reset(self, *, observations: AgentDict, infos: AgentDict | None = None) -> None:
        """Add the results of `reset()`, `observations` (which are copied) and `infos`, to an empty episode.

        Raises:
            EpisodeError: If the episode is not empty.
        """
        chunk = self.chunk
        if self.is_done or self.env_t or self.env_t_started or self.agent_episodes:
            raise EpisodeError(f"episode {self.id_!r} is not empty and at env step {self.env_t}; call add_env_reset() "
                               f"only on an empty episode")  # fmt: skip
        self._prepare()
        for agent, observation in observations.items():
            self._join(agent, observation, 0, (infos or {}).get(agent))
        self._note_infos(infos or {}, observations)
        chunk.begun_at = time.perf_counter()

    def add_env_step(
        self,
        observations: AgentDict,
        actions: AgentDict,
        rewards: AgentDict,
        infos: AgentDict | None = None,
        *,
        terminateds: AgentDict | None = None,
        truncateds: AgentDict | None = None,
        extra_model_outputs: AgentDict | None = None,
    ) -> None:
        """Add an env step: the actions of agents and the results of `step()`, in dicts keyed by agent id.

        The results are `observations`, `rewards`, `infos`, `terminateds` and `truncateds`.

        A transition consists of an action, all rewards up to the agent's next observation, and that observation. If an
        agent finishes without a new observation, its last one is repeated. Rewards before an agent's first action count
        towards its first transition. `"__all__"` ends the episode for all agents; flags of individual agents take
        precedence.

        Args:
            actions: Actions of agents that have an observation to act on.
            extra_model_outputs: Per agent, a dict of output name -> value.

        Raises:
            EpisodeError: If the episode is finished or still running in a runner, if there is data for a finished
                agent, if an agent acts without an observation or is observed twice without acting, or if a reward is
                not a number; the episode is then unchanged. Also if an item differs in shape from earlier items, or no
                dtype can represent all of them.
        """
        if self.is_done:
            raise EpisodeError(f"episode {self.id_!r} has finished, at env step {self.env_t}; no more steps can be "
                               f"added")  # fmt: skip
        infos, terminateds, truncateds = infos or {}, terminateds or {}, truncateds or {}
        outputs = extra_model_outputs or {}
        self._prepare()
        all_agents = self.agent_episodes if terminateds.get(ALL) or truncateds.get(ALL) else ()
        named = dict.fromkeys([*observations, *actions, *rewards, *terminateds, *truncateds, *all_agents])
        agents = [agent for agent in named if agent != ALL]
        for agent in agents:
            self._check_step(agent, observations, actions, rewards, infos, outputs)
        where = f"episode {self.id_!r}, env step {self.env_t + 1}"
        rewarded = {agent: as_reward(reward, f"{where}, reward of agent {agent!r}") for agent, reward in rewards.items()
                if reward is not None}  # fmt: skip
        chunk = self.chunk
        for agent in agents:
            own = bool(terminateds.get(agent)), bool(truncateds.get(agent))
            flags = own if any(own) else (bool(terminateds.get(ALL)), bool(truncateds.get(ALL)))
            if agent in actions:
                self._opened()[agent] = actions[agent], dict(outputs.get(agent) or {})
            self._add_step_of(agent, observations, rewarded.get(agent, 0.0), infos.get(agent), flags)
        chunk.env_t += 1
        chunk.is_terminated, chunk.is_truncated = bool(terminateds.get(ALL)), bool(truncateds.get(ALL))
        self._note_infos(infos, observations)
        now = time.perf_counter()
        if chunk.begun_at is None:
            chunk.begun_at = now - chunk.duration_s
        chunk.duration_s = now - chunk.begun_at

    def _check_step(self, agent: AgentID, observations: AgentDict, actions: AgentDict, *others: AgentDict) -> None:
        steps, is_open = self.agent_episodes.get(agent), agent in self._opened()
        reason = ""
        if steps is not None and steps.is_done:
            is_named = any(data.get(agent) is not None for data in (observations, actions, *others))
            reason = "has finished and cannot receive more data" if is_named else ""
        elif agent in actions and (steps is None or is_open):
            reason = "acts twice on the same observation" if is_open else "acts before its first observation"
        elif agent in observations and steps is not None and not is_open and agent not in actions:
            reason = "is observed twice without acting in between"
        if reason:
            raise EpisodeError(f"episode {self.id_!r}, env step {self.env_t + 1}, agent {agent!r}: {reason}")

    def _add_step_of(
        self,
        agent: AgentID,
        observations: AgentDict,
        step_reward: float,
        info: dict[str, Any] | None,
        flags: tuple[bool, bool],
    ) -> None:
        """Add an agent's part of a step, whose action is already in `open_actions`."""
        chunk, opened, steps = self.chunk, self._opened(), self.agent_episodes.get(agent)
        env_t, is_observed = chunk.env_t + 1, agent in observations
        if steps is not None and steps.is_done:
            return
        if agent in opened and (is_observed or any(flags)):
            assert steps is not None
            action, extras = opened.pop(agent)
            reward = step_reward + chunk.hanging_rewards.pop(agent, 0.0) + chunk.early_rewards.pop(agent, 0.0)
            observation = observations[agent] if is_observed else steps.get_observations(-1)
            steps.add(observation, env_t, info, action, reward, extras, *flags)
            return
        if agent in opened:
            chunk.hanging_rewards[agent] = chunk.hanging_rewards.get(agent, 0.0) + step_reward
        elif any(flags):
            chunk.early_rewards.pop(agent, None)
            if steps is not None:  # None: the agent appeared and finished in the same step
                steps.is_terminated, steps.is_truncated = flags
            return
        else:
            chunk.early_rewards[agent] = chunk.early_rewards.get(agent, 0.0) + step_reward
        if is_observed and steps is None:
            self._join(agent, observations[agent], env_t, info)

    def _note_infos(self, infos: AgentDict, observations: AgentDict) -> None:
        """Store infos that do not belong to an observation."""
        chunk = self.chunk
        if infos.get(COMMON):
            chunk.common_infos[chunk.env_t] = infos[COMMON]
        for agent in self.agent_episodes.keys() - observations.keys():
            ends_here = self.agent_episodes[agent].env_ts()[-1] == chunk.env_t
            if infos.get(agent) and not ends_here:
                chunk.waiting_infos.setdefault(agent, {})[chunk.env_t] = infos[agent]

    def _prepare(self) -> None:
        """Move all data into growable agent episodes.

        Raises:
            EpisodeError: If the episode is running in a runner.
        """
        chunk = self.chunk
        if chunk.is_under_way:
            raise EpisodeError(f"episode {self.id_!r} is still running in a runner, which adds its steps; to add "
                               f"your own, use copy.deepcopy(episode)")  # fmt: skip
        if chunk.open_actions is None:
            waiting_infos = self.get_waiting_infos()
            chunk.agent_episodes, chunk.open_actions = self._all_agents()
            chunk.waiting_infos, chunk.without_steps, chunk.lanes = waiting_infos, (), None

    def _all_agents(self) -> tuple[AgentEpisodes, dict[AgentID, tuple[Any, dict[str, Any]]]]:
        """Return the episodes of all observed agents and the pending actions, which have no next observation yet."""
        chunk = self.chunk
        if chunk.lanes is None:
            return self.agent_episodes, chunk.open_actions or {}
        all_agents = {**chunk.lanes.agent_episodes(of_all=True), **self.agent_episodes}
        return all_agents, chunk.lanes.open_actions(chunk.hanging_rewards)

    # Cutting into chunks

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """Return the next chunk, without steps yet, in which all unfinished agents continue.

        Args:
            len_lookback_buffer: Number of env steps whose transitions are copied as lookback, as far as available.

        Raises:
            EpisodeError: If the episode has finished.
        """
        if self.is_done:
            raise EpisodeError(f"episode {self.id_!r} has finished, at env step {self.env_t}; it has no next chunk")
        if len_lookback_buffer < 0:
            raise EpisodeError(f"len_lookback_buffer must be >= 0, got {len_lookback_buffer}")
        chunk, agent_episodes = self.chunk, AgentEpisodes()
        lookback = min(len_lookback_buffer, chunk.lookback + len(self))
        all_agents, opened = self._all_agents()
        for agent, steps in all_agents.items():
            if not steps.is_done:
                last = steps.source.n_obs - 1
                first = min(int(np.searchsorted(steps.env_ts(), chunk.env_t - lookback)), last)
                agent_episodes[agent] = steps.successor(first, last - first)
        return self.of(
            replace(
                chunk,
                agent_episodes=agent_episodes,
                agent_ids=list(agent_episodes),
                env_t_started=chunk.env_t,
                lookback=lookback,
                common_infos={t: info for t, info in chunk.common_infos.items() if t >= chunk.env_t - lookback},
                waiting_infos={},
                hanging_rewards=dict(chunk.hanging_rewards),
                early_rewards=dict(chunk.early_rewards),
                open_actions=copy.deepcopy(opened),
                custom_data=copy.deepcopy(chunk.custom_data),
                env_states=None,
                respawned=(),
                without_steps=(),
                lanes=None,
                module_of={agent: self.module_for(agent) for agent in agent_episodes},
            )
        )

    # Overwriting items

    def set_observations(
        self, *, new_data: AgentDict, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite observations of agents; see `SingleAgentEpisode.put()`.

        Args:
            new_data: Agent id -> new values.
            at_indices: Indices into the steps of each agent.
            neg_index_as_lookback: If True, negative indices count back from index 0.

        Raises:
            KeyError: If an agent has no episode in this chunk; nothing is written then.
        """
        self._put("observations", None, new_data, at_indices, neg_index_as_lookback)

    def set_actions(
        self, *, new_data: AgentDict, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite actions; this does not affect actions already sent to the env.

        `new_data`, `at_indices` and `neg_index_as_lookback` are as in `set_observations()`.
        """
        self._put("actions", None, new_data, at_indices, neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: AgentDict, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite rewards; `new_data`, `at_indices` and `neg_index_as_lookback` are as in `set_observations()`."""
        self._put("rewards", None, new_data, at_indices, neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: AgentDict, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite items of the module output `key`.

        `new_data`, `at_indices` and `neg_index_as_lookback` are as in `set_observations()`.
        """
        self._put("extra_model_outputs", key, new_data, at_indices, neg_index_as_lookback)

    def _put(self, what: str, key: str | None, new_data: AgentDict, at_indices: Indices, neg: bool) -> None:
        if missing := [agent for agent in new_data if agent not in self.agent_episodes]:
            raise KeyError(f"episode {self.id_!r} has no steps of agents {missing}; agents with steps: "
                           f"{list(self.agent_ids)}")  # fmt: skip
        for agent, items in new_data.items():
            self.agent_episodes[agent].put(what, key, items, at_indices, neg)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> "MultiAgentEpisode":
        """Return consecutive env steps as views: the chunk that a runner would have returned for them.

        Consecutive slices contain every transition exactly once, in the slice of its last observation. Flags of an
        agent stay with its last observation, flags of the env with the last env step. The rewards that a waiting agent
        had received by the end of a slice are not known, so its hanging reward is 0 unless the slice ends at the end of
        the chunk.

        Args:
            slice_: Slice of env steps, where 0 is `env_t_started`. Its step must be 1 or None.
            len_lookback_buffer: Number of env steps of lookback to include, as far as available; None means as in this
                chunk.
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
                without_steps=(),
                lanes=None,
                module_of={},
                open_actions=opened,
                early_rewards=dict(chunk.early_rewards) if at_end else {},
            )
        )

    def _answered_at(self, agent: AgentID, end: int) -> tuple[Any, dict[str, Any]]:
        """Return the (action, extra outputs) of the transition of `agent` that is incomplete at env step `end`."""
        steps = self.agent_episodes[agent]
        row = int(np.searchsorted(steps.env_ts(), end, "right")) - 1 - steps.lookback
        if row >= len(steps):
            return self.open_actions()[agent]
        at: dict[str, Any] = {"indices": row, "neg_index_as_lookback": True}
        return steps.get_actions(**at), steps.get_extra_model_outputs(**at)

    def _agent_episodes(
        self, begin: int, end: int, lookback: int
    ) -> tuple[dict[AgentID, SingleAgentEpisode], list[Any], list[Any]]:
        """Return (agent episodes with transitions between two env steps, live agents, agents waiting at `end`)."""
        agent_episodes: dict[AgentID, SingleAgentEpisode] = {}
        known, waiting = [], []
        for agent, agent_episode in self.agent_episodes.items():
            env_ts = agent_episode.env_ts()
            first = max(int(np.searchsorted(env_ts, begin, "right")) - 1, 0)
            last = int(np.searchsorted(env_ts, end, "right")) - 1
            if last < 0 or (agent_episode.is_done and env_ts[-1] <= begin):
                continue
            known.append(agent)
            if last > first or self._is_built:
                before = max(first - int(np.searchsorted(env_ts, begin - lookback)), 0)
                agent_episodes[agent] = agent_episode.rows(first - before, last, before)
            if env_ts[last] < end and not (agent_episode.is_done and last == len(env_ts) - 1):
                waiting.append(agent)
        return agent_episodes, known, waiting

    def _states_of(
        self, states: np.ndarray, agent_episodes: AgentEpisodes, known: list[Any], since: int, end: int
    ) -> np.ndarray:
        """Select the states from env step `since` to `end`, and earlier ones at which agents waiting at `end` acted."""
        first = self.env_t + 1 - len(states)
        acted_at = [int(agent_episode.env_ts()[agent_episode.lookback]) for agent_episode in agent_episodes.values()]
        for agent in known:
            if agent not in agent_episodes:
                agent_episode = self.agent_episodes.get(agent)
                env_ts = np.zeros(0) if agent_episode is None else agent_episode.env_ts()
                before = env_ts[env_ts <= end]
                acted_at.append(int(before[-1]) if len(before) else first)  # else waiting since an earlier chunk
        return states[max(min([since, *acted_at]) - first, 0) : end + 1 - first]

    def concat_episode(self, other: "MultiAgentEpisode") -> None:
        """Append the next chunk, dropping the lookback of agents that are in both chunks.

        Raises:
            EpisodeError: If `other` is not the next chunk, an agent that finished here rejoins there, or only one of
                the chunks has env states; nothing changes then.
        """
        if self.id_ != other.id_ or self.is_done or self.env_t != other.env_t_started:
            raise EpisodeError(
                f"episode {self.id_!r}, env steps {self.env_t_started} to {self.env_t}, done={self.is_done}: can't be "
                f"followed by episode {other.id_!r}, env steps {other.env_t_started} to {other.env_t}"
            )
        chunk, next_, states = self.chunk, other.chunk, other.env_states
        if (chunk.env_states is None) != (states is None):
            raise EpisodeError(f"episode {self.id_!r}: cannot join a chunk with env states and one without")
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

    def finalize(self, drop_zero_len_single_agent_episodes: bool = False) -> "MultiAgentEpisode":
        """RLlib's deprecated name for `to_numpy()`.

        Args:
            drop_zero_len_single_agent_episodes: If True, drop agents without a transition (`sample()` never returns
                any).
        """
        if drop_zero_len_single_agent_episodes:
            self.agent_episodes = {
                agent: agent_episode for agent, agent_episode in self.agent_episodes.items() if len(agent_episode)
            }
        return self
