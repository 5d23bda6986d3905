"""Chunks of RLlib episodes: cutting, joining, and lookup in replay buffers.

Times: for each agent, an episode has a buffer with one entry per env step: the agent step of the observation, or "S" if
there was none. For agents that join a continued chunk, RLlib lays out the buffer differently; `agent_times()` always
returns the same layout.
"""

import copy
from collections.abc import Hashable
from typing import Any

import tree  # type: ignore[import-untyped]
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from fastmarl.rllib.episodes.extras import uniform
from fastmarl.rllib.episodes.steps import SKIPPED, AgentEpisode, Episode

HANGING = ("_hanging_actions_end", "_hanging_extra_model_outputs_end", "_hanging_rewards_end")
Times = list[Any]


def agent_times(episode: Episode, agent: Hashable) -> Times:
    """Return the time entries of an agent: first the lookback, then one per env step `env_t_started` to `env_t`."""
    buffer = episode.env_t_to_agent_t[agent]
    times, lookback, started = list(buffer.data), buffer.lookback, episode.env_t_started
    n = len(episode) + lookback + 1
    if "14" not in getattr(episode, "fixes", ()):
        # Without the correction, RLlib counts steps of agents joining in this chunk from the beginning of the episode.
        if started > lookback and _joined(times, lookback) and len(times) >= n + started - lookback:
            times = times[started - lookback :]
        elif started < lookback:
            lacking = lookback - started
            if len(times) + lacking == n or (len(times) + lacking == n + 1 and lacking > 1):  # n + 1: see below
                times = [SKIPPED] * lacking + times
    if len(times) > n:  # an agent that ended unobserved has two entries for that step
        last = last_place(times, len(times) - 1)
        del times[last - 1 if last is not None and last > 0 else -1]
    return times[:n] + [SKIPPED] * (n - len(times))


def last_observed(episode: Episode) -> list[Hashable]:
    """Return the agents observed in the last env step, which have an entry in `get_observations(-1)`."""
    n, started, observed = len(episode), episode.env_t_started, []
    for agent, agent_episode in episode.agent_episodes.items():
        buffer = episode.env_t_to_agent_t[agent]
        times = buffer.data
        excess = len(times) - n - buffer.lookback - 1
        if excess and not (0 < excess == started - buffer.lookback and _joined(times, buffer.lookback)):
            times = agent_times(episode, agent)
        if times[-1] == SKIPPED or (agent_episode.is_done and not len(agent_episode)):  # see `aligned_view`
            continue
        rows = agent_episode.observations.data
        if type(rows) is not list or rows[-1] is not None:
            observed.append(agent)
    return observed


def _joined(times: Times, lookback: int) -> bool:
    """Return True if the agent joined in this chunk."""
    return all(step == SKIPPED for step in times[: lookback + 1])


def last_place(times: Times, end: int) -> int | None:
    """Return the position of the last observation up to and including `end`, or None."""
    return next((i for i in range(min(end, len(times) - 1), -1, -1) if times[i] != SKIPPED), None)


def as_kind(cls: type, episode: Episode) -> Any:
    """Return an episode of class `cls` that shares all data with this one."""
    same: Any = object.__new__(cls)
    for name in RLlibEpisode.__slots__:
        setattr(same, name, getattr(episode, name))
    return same


def idle_agents(episode: Episode) -> dict[Hashable, int]:
    """Return agent -> env steps (1 or more) since it was last observed, for agents that have not acted since then."""
    idle = {}
    for agent, agent_episode in episode.agent_episodes.items():
        if not agent_episode.is_done and agent not in episode._hanging_actions_end:
            times = episode.env_t_to_agent_t[agent].data
            last = last_place(times, len(times) - 1)
            if last is not None and last < len(times) - 1:
                idle[agent] = len(times) - 1 - last
    return idle


def rllibs_view(episode: Episode, idle: dict[Hashable, int]) -> RLlibEpisode:
    """Return an episode of the RLlib class with the same data, so that cutting it keeps agents in RLlib order.

    Idle agents appear as observed in the last step, because RLlib would otherwise treat them as ended. Only waiting
    agents keep a hanging reward: RLlib would append hanging rewards of other agents to reward arrays, possibly changing
    the dtype (61).
    """
    view = as_kind(RLlibEpisode, episode)
    view._hanging_rewards_end = episode._hanging_rewards_end.copy()
    for agent in episode._hanging_rewards_end.keys() - episode._hanging_actions_end.keys():
        del view._hanging_rewards_end[agent]
    view.env_t_to_agent_t = view.env_t_to_agent_t.copy()
    for agent, back in idle.items():
        times = list(view.env_t_to_agent_t[agent].data)
        times[-1 - back], times[-1] = times[-1], times[-1 - back]
        set_times(view, {agent: times})
    return view


def move_back(after: Episode, idle: dict[Hashable, int]) -> None:
    """After a cut, move the last observation of idle agents back to its env step, or to the start of the lookback."""
    for agent, back in idle.items():
        times = after.env_t_to_agent_t[agent].data
        back = min(back, len(times) - 1)
        times[-1 - back], times[-1] = times[-1], times[-1 - back]


def aligned_view(episode: Episode) -> Episode:
    """Return the episode, or a view in which the times of all agents have the layout of `agent_times()`.

    The view omits agents that ended in the previous chunk, which RLlib still lists with times starting at zero.
    """
    lookback = episode._len_lookback_buffers
    n = len(episode) + lookback + 1
    agent_episodes = {a: each for a, each in episode.agent_episodes.items() if len(each) or not each.is_done}
    buffers = [episode.env_t_to_agent_t[agent] for agent in agent_episodes]
    are_aligned = all(times.lookback == lookback and len(times.data) == n for times in buffers)
    if are_aligned and len(agent_episodes) == len(episode.agent_episodes):
        return episode
    view = as_kind(type(episode), episode)
    view.agent_episodes, view.env_t_to_agent_t = agent_episodes, {}
    set_times(view, {agent: agent_times(episode, agent) for agent in agent_episodes})
    return view


# Cutting.


def keep_last_observations(before: Episode, after: Episode) -> None:
    """Copy the last unprocessed observation of each agent, in case the agent ends without another one."""
    for agent, agent_episode in after.agent_episodes.items():
        earlier = before.agent_episodes[agent]
        agent_episode._last_added_observation = earlier._last_added_observation
        agent_episode._last_added_infos = earlier._last_added_infos


def keep_last_states(before: Episode, after: Episode) -> None:
    """Extend the lookback of agents to include the recurrent state before their first step in the new chunk.

    RLlib's lookback is a number of env steps, in which a waiting agent may not have taken any agent step.
    """
    for agent, agent_episode in after.agent_episodes.items():
        earlier = before.agent_episodes.get(agent)
        if agent_episode.is_done or agent_episode.observations.lookback or earlier is None:
            continue
        states = earlier.extra_model_outputs.get(Columns.STATE_OUT)
        if states is None or not states.len_incl_lookback() or earlier.observations.len_incl_lookback() < 2:
            continue
        _prepend(agent_episode.observations, earlier.observations.get(-2))
        _prepend(agent_episode.infos, earlier.infos.get(-2))
        _prepend(agent_episode.actions, earlier.actions.get(-1))
        _prepend(agent_episode.rewards, earlier.rewards.get(-1))
        for key, column in earlier.extra_model_outputs.items():
            agent_episode.extra_model_outputs[key] = InfiniteLookbackBuffer([column.get(-1)], lookback=1)


def _prepend(buffer: Any, item: Any) -> None:
    """Prepend a lookback item to a buffer in list form."""
    buffer.data.insert(0, item)
    buffer.lookback += 1


# Joining.


def joined_times(first: Episode, second: Episode) -> dict[Hashable, Times]:
    """Return agent -> time entries over both chunks, with the lookback of the first chunk."""
    lookback = first._len_lookback_buffers
    joined = {}
    for agent in [*first.env_t_to_agent_t, *(a for a in second.env_t_to_agent_t if a not in first.env_t_to_agent_t)]:
        times = [SKIPPED] * (lookback + len(first) + 1)
        if agent in first.env_t_to_agent_t:
            times = agent_times(first, agent)
        agent_episode = first.agent_episodes.get(agent)
        following = [SKIPPED] * (len(second) + 1)
        if agent in second.env_t_to_agent_t and not (agent_episode is not None and agent_episode.is_done):
            following = agent_times(second, agent)[second.env_t_to_agent_t[agent].lookback :]
        last = last_place(times, len(times) - 1)
        if last is not None and times[last] in following:  # the same observation, or a later one that replaces it
            times[last] = SKIPPED
        if times[-1] == SKIPPED:
            times[-1] = following[0]
        joined[agent] = times + following[1:]
    return joined


def set_times(episode: Episode, joined: dict[Hashable, Times]) -> None:
    """Replace the time buffers of these agents; `joined` maps each agent to its entries, including the lookback."""
    for agent, times in joined.items():
        buffer = InfiniteLookbackBuffer(times)
        buffer.lookback = episode._len_lookback_buffers
        episode.env_t_to_agent_t[agent] = buffer


def adopt_observations(first: Episode, second: Episode) -> None:
    """Replace each agent's last observation in `first` with its first one in `second`, later if it was idle."""
    for agent, agent_episode in second.agent_episodes.items():
        ours = first.agent_episodes.get(agent)
        if ours is not None and not ours.is_done and ours.t == agent_episode.t_started:
            ours.observations.pop()
            ours.observations.extend(agent_episode.get_observations([0]))
            ours.infos.set(agent_episode.get_infos(0), at_indices=-1)


def appendable(first: Episode, second: Episode) -> Episode:
    """Return `second`, or a copy whose agents have the same columns of extra outputs as in `first`."""
    agent_episodes = {
        agent: uniform(first.agent_episodes[agent], agent_episode) if agent in first.agent_episodes else agent_episode
        for agent, agent_episode in second.agent_episodes.items()
    }
    if all(agent_episodes[agent] is agent_episode for agent, agent_episode in second.agent_episodes.items()):
        return second
    second = as_kind(type(second), second)
    second.agent_episodes = agent_episodes
    return second


def hang_as(first: Episode, second: Episode) -> None:
    """After joining, copy the hanging data of agents waiting at the end of the second chunk."""
    for name in HANGING:
        setattr(first, name, copy.deepcopy(getattr(second, name)))
    for agent in second._hanging_rewards_end.keys() - second._hanging_actions_end.keys():
        if not first._hanging_rewards_end[agent]:
            del first._hanging_rewards_end[agent]  # a cut leaves zeros here, which RLlib treats as rewards


def add_early_rewards(first: Episode, second: Episode) -> None:
    """After joining, add rewards received by agents before they first acted; drop rewards of ended agents."""
    for agent, reward in second._hanging_rewards_begin.items():
        first._hanging_rewards_begin[agent] += reward
    for agent, agent_episode in second.agent_episodes.items():
        if agent_episode.is_done:
            first._hanging_rewards_begin.pop(agent, None)


class ChunkTimes(list):
    """Time entries of a single agent in a chunk in which its agent time does not start at 0.

    RLlib's replay buffers look up steps counted from the beginning of the chunk, while entries count from the
    beginning of the episode. Nothing else looks up entries by value, so only `index()` is overridden.

    Attributes:
        t_started: Agent time at the beginning of the chunk.
    """

    __slots__ = ("t_started",)

    def __init__(self, times: Any = (), t_started: int = 0):
        super().__init__(times)
        self.t_started = t_started

    def index(self, step: Any, *bounds: Any) -> int:
        """Return the position of an agent step, where `step` counts from the beginning of the chunk."""
        return super().index(step if step == SKIPPED else self.t_started + step, *bounds)


def prepare_for_replay(episode: RLlibEpisode) -> None:
    """Wrap agent times that do not start at 0 in `ChunkTimes`, so that replay buffers find the right steps."""
    for agent, agent_episode in episode.agent_episodes.items():
        buffer = episode.env_t_to_agent_t.get(agent)
        if agent_episode.t_started and buffer is not None:
            buffer.data = ChunkTimes(buffer.data, agent_episode.t_started)


def slice_of(episode: Episode, start: int, stop: int, lookback: int | None) -> Episode:
    """Return the env steps `start` to `stop` of a chunk, counted from its beginning, 0 <= start, stop <= len.

    A transition belongs to the slice in which it is completed, so adjacent slices contain each transition once.
    """
    stop = max(start, stop)
    wanted = episode._len_lookback_buffers if lookback is None else lookback
    wanted = min(wanted, episode._len_lookback_buffers + start)
    piece = type(episode)(
        id_=episode.id_,
        observation_space=episode.observation_space,
        action_space=episode.action_space,
        env_t_started=episode.env_t_started + start,
        len_lookback_buffer=wanted,
        agent_module_ids=dict(episode._agent_to_module_mapping),
        agent_to_module_mapping_fn=episode.agent_to_module_mapping_fn,
    )
    piece.env_t = episode.env_t_started + stop
    piece._custom_data = dict(episode.custom_data)
    if stop == len(episode):
        piece.is_terminated, piece.is_truncated = episode.is_terminated, episode.is_truncated
    for agent, agent_episode in episode.agent_episodes.items():
        if len(agent_episode) or not agent_episode.is_done:
            _AgentSlice(episode, agent, start, stop, wanted).add_to(piece)
    return piece


class _AgentSlice:
    """The part of a slice for a single agent: agent steps `first` to `last`, counted by observations."""

    def __init__(self, episode: Episode, agent: Hashable, start: int, stop: int, lookback: int):
        self._episode, self._agent, self._agent_episode = episode, agent, episode.agent_episodes[agent]
        before = episode.env_t_to_agent_t[agent].lookback
        times = agent_times(episode, agent)
        self._end = before + stop
        self._times = times[max(before + start - lookback, 0) : self._end + 1]
        self._place = last_place(times, self._end)
        if self._place is None:
            return
        self._last = times[self._place]
        begin = last_place(times, before + start)
        if begin is None:
            begin = next(i for i, step in enumerate(times) if step != SKIPPED)
        self._first = max(times[begin], self._agent_episode.t_started)
        seen = [step for step in self._times if step != SKIPPED]
        self._is_seen = self._place >= before + start
        self._lookback = min(self._first - min(seen, default=self._first), self._row(self._first))
        self._lookback = max(self._lookback, 0)

    def add_to(self, piece: Episode) -> None:
        """Add the agent to the slice if it has a step there, or is observed there without ending."""
        if self._place is None or (self._last <= self._first and (self._ends() or not self._is_seen)):
            return
        piece.agent_episodes[self._agent] = self._sliced()
        piece.agent_t_started[self._agent] = self._first
        set_times(piece, {self._agent: self._times})
        if self._place < self._end and not self._ends():
            self._hang(piece)

    def _row(self, step: int) -> int:
        """Return the index of an agent step in the buffers of the agent episode."""
        return step - self._agent_episode.t_started + self._agent_episode.observations.lookback

    def _ends(self) -> bool:
        return self._agent_episode.is_done and self._last == self._agent_episode.t

    def _sliced(self) -> AgentEpisode:
        agent_episode = copy.copy(self._agent_episode)
        begin, end = self._row(self._first) - self._lookback, self._row(self._last)
        agent_episode.t_started, agent_episode.t = self._first, self._last
        if not self._ends():
            agent_episode.is_terminated = agent_episode.is_truncated = False
        agent_episode.observations = self._rows(agent_episode.observations, begin, end + 1)
        agent_episode.infos = self._rows(agent_episode.infos, begin, end + 1)
        agent_episode.actions = self._rows(agent_episode.actions, begin, end)
        agent_episode.rewards = self._rows(agent_episode.rewards, begin, end)
        agent_episode.extra_model_outputs = {
            key: self._rows(column, begin, end) for key, column in agent_episode.extra_model_outputs.items()
        }
        agent_episode._custom_data = dict(agent_episode.custom_data)
        return agent_episode

    def _rows(self, buffer: InfiniteLookbackBuffer, begin: int, end: int) -> InfiniteLookbackBuffer:
        """Return rows [begin, end) of a column; indices refer to the observations, whose lookback may be longer."""
        missing = self._agent_episode.observations.lookback - buffer.lookback
        first = max(begin - missing, 0)
        rows = slice(first, max(end - missing, first))
        sliced = copy.copy(buffer)
        if buffer.finalized:
            sliced.data = tree.map_structure(lambda leaf: leaf[rows], buffer.data)
        else:
            sliced.data = buffer.data[rows]
        sliced.lookback = max(self._lookback - max(missing - begin, 0), 0)
        return sliced

    def _hang(self, piece: Episode) -> None:
        """Add hanging data: the agent acted within the slice, but was not observed again before its end."""
        agent, agent_episode, row = self._agent, self._agent_episode, self._last - self._agent_episode.t_started
        if row < len(agent_episode):
            piece._hanging_actions_end[agent] = agent_episode.get_actions(row)
            piece._hanging_rewards_end[agent] = agent_episode.get_rewards(row)
            piece._hanging_extra_model_outputs_end[agent] = {
                key: agent_episode.get_extra_model_outputs(key, row) for key in agent_episode.extra_model_outputs
            }
        elif agent in self._episode._hanging_actions_end:
            for name in HANGING:
                hanging = getattr(self._episode, name)
                if agent in hanging:
                    getattr(piece, name)[agent] = copy.deepcopy(hanging[agent])
