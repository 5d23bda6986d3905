"""Chunks of RLlib episodes: what follows upon a cut, what two chunks make together, what a slice holds.

Times: an episode has for each agent a buffer with an entry for each env step, the agent's step at which it was observed
or "S". Beware that RLlib writes it in another form for agents that join a continued chunk; `agent_times` has one form.
"""

import copy
from collections.abc import Hashable
from typing import Any

import tree  # type: ignore[import-untyped]
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from fastmarl.rllib.episode_extras import uniform
from fastmarl.rllib.episode_steps import SKIPPED, Episode, Part

HANGING = ("_hanging_actions_end", "_hanging_extra_model_outputs_end", "_hanging_rewards_end")
Times = list[Any]


def agent_times(episode: Episode, agent: Hashable) -> Times:
    """The agent's entries: those of the lookback, then one for each env step from `env_t_started` to `env_t`."""
    buffer = episode.env_t_to_agent_t[agent]
    times, lookback, started = list(buffer.data), buffer.lookback, episode.env_t_started
    n = len(episode) + lookback + 1
    joined = all(step == SKIPPED for step in times[: lookback + 1])  # in this chunk
    if joined and "14" not in getattr(episode, "fixes", ()):
        # RLlib counts from the begin of the episode, but it may have been put right since, as the length tells.
        if started > lookback and len(times) >= n + started - lookback:
            times = times[started - lookback :]
        elif started < lookback and len(times) < n:
            times = [SKIPPED] * (lookback - started) + times
    if len(times) > n:  # an agent that ended unobserved has two entries for that step
        last = _last_place(times, len(times) - 1)
        del times[last - 1 if last is not None and last > 0 else -1]
    return times[:n] + [SKIPPED] * (n - len(times))


def _last_place(times: Times, end: int) -> int | None:
    """Place of the last observation up to `end`, inclusive."""
    return next((i for i in range(min(end, len(times) - 1), -1, -1) if times[i] != SKIPPED), None)


def as_kind(cls: type, episode: Episode) -> Any:
    """An episode of class `cls` with the very data of this one."""
    same: Any = object.__new__(cls)
    for name in RLlibEpisode.__slots__:
        setattr(same, name, getattr(episode, name))
    return same


def idle_agents(episode: Episode) -> dict[Hashable, int]:
    """Agents that have left their last observation unanswered -> how many env steps ago that was (not 0)."""
    idle = {}
    for agent, part in episode.agent_episodes.items():
        if not part.is_done and agent not in episode._hanging_actions_end:
            times = episode.env_t_to_agent_t[agent].data
            last = _last_place(times, len(times) - 1)
            if last is not None and last < len(times) - 1:
                idle[agent] = len(times) - 1 - last
    return idle


def rllibs_view(episode: Episode, idle: dict[Hashable, int]) -> RLlibEpisode:
    """An episode of RLlib's class with the same data, to be cut with what RLlib makes of that, also the order of agents.

    Idle agents are observed in its last step, as RLlib would take them for ended.
    """
    view = as_kind(RLlibEpisode, episode)
    view.env_t_to_agent_t = view.env_t_to_agent_t.copy()
    for agent, back in idle.items():
        times = list(view.env_t_to_agent_t[agent].data)
        times[-1 - back], times[-1] = times[-1], times[-1 - back]
        set_times(view, {agent: times})
    for agent in episode.agent_episodes:
        if agent not in view.env_t_to_agent_t:
            set_times(view, {agent: [SKIPPED] * (len(episode) + episode._len_lookback_buffers + 1)})
    return view


def move_back(after: Episode, idle: dict[Hashable, int]) -> None:
    """After a cut, let idle agents have been observed when they were, or at the begin of the lookback."""
    for agent, back in idle.items():
        times = after.env_t_to_agent_t[agent].data
        back = min(back, len(times) - 1)
        times[-1 - back], times[-1] = times[-1], times[-1 - back]


def aligned_view(episode: Episode) -> Episode:
    """The episode, or one with the same data in which all agents have times, as `agent_times` gives them."""
    all_times, lookback = episode.env_t_to_agent_t, episode._len_lookback_buffers
    n = len(episode) + lookback + 1
    if all(len(times.data) == n and times.lookback == lookback for times in all_times.values()) and all(
        agent in all_times for agent in episode.agent_episodes
    ):
        return episode
    view = as_kind(type(episode), episode)
    view.env_t_to_agent_t = {}
    view.agent_episodes = {a: part for a, part in episode.agent_episodes.items() if a in all_times}
    set_times(view, {agent: agent_times(episode, agent) for agent in view.agent_episodes})
    return view


# A cut.


def keep_last_states(before: Episode, after: Episode) -> None:
    """Let agents of recurrent modules look back to the state that their first step in the new chunk began with.

    RLlib looks back some env steps, in which an agent that waits may have no step of its own.
    """
    for agent, part in after.agent_episodes.items():
        earlier = before.agent_episodes.get(agent)
        if part.is_done or part.observations.lookback or earlier is None:
            continue
        states = earlier.extra_model_outputs.get(Columns.STATE_OUT)
        if states is None or not states.len_incl_lookback() or earlier.observations.len_incl_lookback() < 2:
            continue
        _prepend(part.observations, earlier.observations.get(-2))
        _prepend(part.infos, earlier.infos.get(-2))
        _prepend(part.actions, earlier.actions.get(-1))
        _prepend(part.rewards, earlier.rewards.get(-1))
        for key, column in earlier.extra_model_outputs.items():
            part.extra_model_outputs[key] = InfiniteLookbackBuffer([column.get(-1)], lookback=1)


def _prepend(buffer: Any, item: Any) -> None:
    """One more item of lookback, in a buffer in list form."""
    buffer.data.insert(0, item)
    buffer.lookback += 1


def forget_ended(after: Episode) -> None:
    """Agents that ended with the chunk before have no time in this one.

    RLlib still lists them, which keeps its order of agents; but it counts their time from zero, and then fails.
    """
    for agent, part in after.agent_episodes.items():
        if part.is_done:
            after.env_t_to_agent_t.pop(agent, None)
            after.agent_t_started.pop(agent, None)


# Two chunks make one.


def joined_times(first: Episode, second: Episode) -> dict[Hashable, Times]:
    """Entries of all agents for both chunks together, with the lookback of the first."""
    lookback = first._len_lookback_buffers
    joined = {}
    for agent in [*first.env_t_to_agent_t, *(a for a in second.env_t_to_agent_t if a not in first.env_t_to_agent_t)]:
        times = [SKIPPED] * (lookback + len(first) + 1)
        if agent in first.env_t_to_agent_t:
            times = agent_times(first, agent)
        part = first.agent_episodes.get(agent)
        following = [SKIPPED] * (len(second) + 1)
        if agent in second.env_t_to_agent_t and not (part is not None and part.is_done):
            following = agent_times(second, agent)[second.env_t_to_agent_t[agent].lookback :]
        last = _last_place(times, len(times) - 1)
        if last is not None and times[last] in following:  # the same observation, or a newer one in its stead
            times[last] = SKIPPED
        if times[-1] == SKIPPED:
            times[-1] = following[0]
        joined[agent] = times + following[1:]
    return joined


def set_times(episode: Episode, joined: dict[Hashable, Times]) -> None:
    """Give agents the times that they have after chunks were joined."""
    for agent, times in joined.items():
        buffer = InfiniteLookbackBuffer(times)
        buffer.lookback = episode._len_lookback_buffers
        episode.env_t_to_agent_t[agent] = buffer


def adopt_observations(first: Episode, second: Episode) -> None:
    """Let agents end the first chunk with what they begin the second with: if they were idle, it may be newer."""
    for agent, part in second.agent_episodes.items():
        ours = first.agent_episodes.get(agent)
        if ours is not None and not ours.is_done and ours.t == part.t_started:
            ours.observations.pop()
            ours.observations.extend(part.get_observations([0]))
            ours.infos.set(part.get_infos(0), at_indices=-1)


def appendable(first: Episode, second: Episode) -> Episode:
    """`second`, or a copy of it whose agents have the same columns of extra outputs as in `first`."""
    parts = {
        agent: uniform(first.agent_episodes[agent], part) if agent in first.agent_episodes else part
        for agent, part in second.agent_episodes.items()
    }
    if all(parts[agent] is part for agent, part in second.agent_episodes.items()):
        return second
    second = as_kind(type(second), second)
    second.agent_episodes = parts
    return second


def hang_as(first: Episode, second: Episode) -> None:
    """After chunks were joined, those agents wait that wait at the end of the second."""
    for name in HANGING:
        setattr(first, name, copy.deepcopy(getattr(second, name)))
    for agent in second._hanging_rewards_end.keys() - second._hanging_actions_end.keys():
        if not first._hanging_rewards_end[agent]:
            del first._hanging_rewards_end[agent]  # a cut leaves such zeros, which count as rewards


# A slice.


def slice_of(episode: Episode, start: int, stop: int, lookback: int | None) -> Episode:
    """Env steps `start` to `stop` of a chunk, counted from its begin, 0 <= start, stop <= len.

    A transition belongs to the slice in which it is completed, so that slices side by side hold all of them once.
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
    for agent, part in episode.agent_episodes.items():
        if agent in episode.env_t_to_agent_t:
            _AgentSlice(episode, agent, part, start, stop, wanted).add_to(piece)
    return piece


class _AgentSlice:
    """One agent's share of a slice, by its own steps `first` to `last` (which count observations)."""

    def __init__(self, episode: Episode, agent: Hashable, part: Part, start: int, stop: int, lookback: int):
        self._episode, self._agent, self._part = episode, agent, part
        before = episode.env_t_to_agent_t[agent].lookback
        times = agent_times(episode, agent)
        self._end = before + stop
        self._times = times[max(before + start - lookback, 0) : self._end + 1]
        self._place = _last_place(times, self._end)
        if self._place is None:
            return
        self._last = times[self._place]
        begin = _last_place(times, before + start)
        if begin is None:
            begin = next(i for i, step in enumerate(times) if step != SKIPPED)
        self._first = max(times[begin], part.t_started)
        seen = [step for step in self._times if step != SKIPPED]
        self._is_seen = self._place >= before + start
        self._lookback = min(self._first - min(seen, default=self._first), self._row(self._first))
        self._lookback = max(self._lookback, 0)

    def add_to(self, piece: Episode) -> None:
        """Add the agent to a slice, if it has a step in it or at least is observed and goes on."""
        if self._place is None or (self._last <= self._first and (self._ends() or not self._is_seen)):
            return
        piece.agent_episodes[self._agent] = self._sliced()
        piece.agent_t_started[self._agent] = self._first
        buffer = InfiniteLookbackBuffer(self._times)
        buffer.lookback = piece._len_lookback_buffers
        piece.env_t_to_agent_t[self._agent] = buffer
        if self._place < self._end and not self._ends():
            self._hang(piece)

    def _row(self, step: int) -> int:
        """Place of an agent step in the part's buffers."""
        return step - self._part.t_started + self._part.observations.lookback

    def _ends(self) -> bool:
        return self._part.is_done and self._last == self._part.t

    def _sliced(self) -> Part:
        part, begin, end = copy.copy(self._part), self._row(self._first) - self._lookback, self._row(self._last)
        part.t_started, part.t = self._first, self._last
        if not self._ends():
            part.is_terminated = part.is_truncated = False
        part.observations = self._rows(part.observations, begin, end + 1)
        part.infos = self._rows(part.infos, begin, end + 1)
        part.actions = self._rows(part.actions, begin, end)
        part.rewards = self._rows(part.rewards, begin, end)
        part.extra_model_outputs = {
            key: self._rows(column, begin, end) for key, column in part.extra_model_outputs.items()
        }
        part._custom_data = dict(part.custom_data)
        return part

    def _rows(self, buffer: InfiniteLookbackBuffer, begin: int, end: int) -> InfiniteLookbackBuffer:
        """Rows of a column; one that has less lookback than the observations has no rows before it."""
        missing = self._part.observations.lookback - buffer.lookback
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
        """The agent has acted in the slice and is observed next behind it, or not at all as yet."""
        agent, part, row = self._agent, self._part, self._last - self._part.t_started
        if row < len(part):
            piece._hanging_actions_end[agent] = part.get_actions(row)
            piece._hanging_rewards_end[agent] = part.get_rewards(row)
            piece._hanging_extra_model_outputs_end[agent] = {
                key: part.get_extra_model_outputs(key, row) for key in part.extra_model_outputs
            }
        elif agent in self._episode._hanging_actions_end:
            for name in HANGING:
                hanging = getattr(self._episode, name)
                if agent in hanging:
                    getattr(piece, name)[agent] = copy.deepcopy(hanging[agent])
