"""Slices RLlib episodes by env steps, even if agents wait."""

import copy
from collections.abc import Hashable

import tree  # type: ignore[import-untyped]
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from fastmarl.rllib.episodes.chunks import HANGING, agent_times, last_place, set_times
from fastmarl.rllib.episodes.steps import SKIPPED, AgentEpisode, Episode


def slice_of(episode: Episode, start: int, stop: int, lookback: int | None) -> Episode:
    """Return the env steps `start` to `stop` of a chunk, counted from its beginning, 0 <= start, stop <= len.

    A transition belongs to the slice in which it is completed, so adjacent slices hold each transition once.
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
    """One agent's part of a slice: its own steps `first` to `last`, which count observations."""

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
        """Add the agent to a slice if it has a step in it, or is observed in it and does not end."""
        if self._place is None or (self._last <= self._first and (self._ends() or not self._is_seen)):
            return
        piece.agent_episodes[self._agent] = self._sliced()
        piece.agent_t_started[self._agent] = self._first
        set_times(piece, {self._agent: self._times})
        if self._place < self._end and not self._ends():
            self._hang(piece)

    def _row(self, step: int) -> int:
        """Return the index of an agent step in the agent episode's buffers."""
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
        """Return rows of a column, given as rows of the observations; the column may have a shorter lookback."""
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
        """Add hanging data: the agent has acted in the slice, and is next observed after it or not yet."""
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
