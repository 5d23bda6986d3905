"""A running episode as RLlib's callbacks are given it."""

from collections.abc import Callable, Hashable
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode

from fastmarl.core.errors import RunningEpisodeError
from fastmarl.rllib.episodes import agent_in_view
from fastmarl.rllib.episodes.agent_in_view import is_last
from fastmarl.rllib.episodes.episode import MultiAgentEpisode
from fastmarl.rllib.episodes.in_the_making import is_set
from fastmarl.rllib.episodes.lists import ListedColumn, unite_dtypes

OF_RECORD = ("id_", "agent_to_module_mapping_fn", "_agent_to_module_mapping")  # of an episode, kept by its record, too


class EpisodeInView:
    """Makes the episode of a record as late as it can.

    What most callbacks ask for is answered from the record. When something else is asked for, or when something is
    assigned, the episode is made whole: in lists, as RLlib's loop has it. From then on it is to be recorded as RLlib's
    loop does, since what a callback has written is to stay there.

    Args:
        episode: of fastmarl's class, with the slots that don't change; the others are empty.
        answers: those from the record, a RecordAnswers.
        make: given `answers`, and a list for `arrays`, makes the whole episode as it is now; None: it is whole.

    Attributes:
        episode: what callbacks are given.
        is_whole: whether it was made whole.
        arrays: then, the columns that have become lists.
        agents: the agents' episodes in view that were asked for.
        space: an observation space that was given to the episode, if one was.
    """

    def __init__(self, episode: Any, answers: Any, make: Callable[[Any, list[ListedColumn]], Any] | None):
        self._kind: type[MultiAgentEpisode] = type(episode)
        self.episode = episode
        self.answers = answers
        self.is_whole = make is None
        self.arrays: list[ListedColumn] = []
        self.agents = AgentsInView(self, {})
        self.space: Any = None
        self._make = make
        self._is_open = False
        if not self.is_whole:
            episode.__class__ = _in_view(self._kind)
            episode._origin = (self, 0)

    def __enter__(self) -> Any:
        """The episode can be read until the end of the `with` statement."""
        self._is_open = True
        return self.episode

    def __exit__(self, *exception: object) -> None:
        self._is_open = False

    def whole(self) -> Any:
        """The episode, made whole."""
        with self as episode:
            self.make_whole()
        return episode

    def check_open(self) -> None:
        """Raise RunningEpisodeError outside of the call that the episode was given to."""
        if not self._is_open:
            raise RunningEpisodeError(
                "a running episode can be read in a callback's call only; keep what you need in its custom_data, or "
                "read the episodes that sample() returns"
            )

    def make_whole(self) -> None:
        """Have the episode whole, as it is now."""
        if self.is_whole:
            return
        self.check_open()
        assert self._make is not None
        made = self._make(self.answers, self.arrays)
        parts = made.agent_episodes
        for agent_id, part in self.agents.items():
            if agent_id in parts:
                agent_in_view.become(part, parts[agent_id])
                parts[agent_id] = part
        self.become(made)
        del self.episode._origin

    def write_back(self) -> None:
        """Let the record know what was written on the whole episode."""
        for name in OF_RECORD if self.is_whole else ():
            self.answers.adopt(name, getattr(self.episode, name))

    def late_attributes(self, _: int) -> dict[str, Any]:
        """Nothing: all slots are there when this has returned."""
        self.make_whole()
        return {}

    def to_numpy(self) -> Any:
        """The episode, which is over, with arrays in the place of lists."""
        for column in self.arrays:
            column.put_back()
        for agent_episode in self.episode.agent_episodes.values():
            unite_dtypes(agent_episode)
            agent_episode.to_numpy()
        return self.episode

    def become(self, made: Any) -> Any:
        """The callbacks' object, which from now on has the content of `made`, an episode of the same kind."""
        episode = self.episode
        self.is_whole = True
        episode.__class__ = self._kind
        for name in RLlibEpisode.__slots__:
            if name != "_custom_data" and is_set(made, name):
                setattr(episode, name, getattr(made, name))
        if self.space is not None:
            episode.observation_space = self.space
        episode._origin = getattr(made, "_origin", None)
        return episode


class _InView:
    """What an episode in view answers without being made whole; it is RLlib's in all else.

    Somebody may keep one of these methods, and call it when the episode is whole.
    """

    __slots__ = ()
    _origin: Any

    @property
    def env_t(self) -> int:
        """Env steps up to now."""
        return self._origin[0].answers.env_t

    @property
    def is_terminated(self) -> Any:
        """As the env gave it."""
        return self._origin[0].answers.flags[0]

    @property
    def is_truncated(self) -> Any:
        """As the env gave it."""
        return self._origin[0].answers.flags[1]

    @property
    def agent_episodes(self) -> Any:
        """By agent id, the agents' episodes."""
        agents = self._origin[0].answers.agents_in_view(self._origin[0])
        return _whole(self).agent_episodes if agents is None else agents

    @property
    def agent_ids(self) -> set[Hashable]:
        """The agents that have been observed."""
        return set(self._origin[0].answers.agents)

    def get_return(self, include_hanging_rewards: bool = False) -> Any:
        """See RLlib's method."""
        if isinstance(self, _InView) and not include_hanging_rewards:
            known = self._origin[0].answers.episode_return()
            if known is not None:
                return known
        return _whole(self).get_return(include_hanging_rewards)

    def get_duration_s(self) -> float:
        """Seconds."""
        return self._origin[0].answers.duration_s() if isinstance(self, _InView) else _whole(self).get_duration_s()

    def get_agents_that_stepped(self) -> set[Hashable]:
        """See RLlib's method."""
        if isinstance(self, _InView):
            stepped = self._origin[0].answers.stepped()
            if stepped is not None:
                return set(dict.fromkeys(stepped).keys())
        return _whole(self).get_agents_that_stepped()

    def get_observations(self, indices: Any = None, agent_ids: Any = None, **options: Any) -> Any:
        """See RLlib's method."""
        newest = _of_newest(self, "newest_observations", indices, agent_ids, options)
        return _whole(self).get_observations(indices, agent_ids, **options) if newest is None else newest

    def get_infos(self, indices: Any = None, agent_ids: Any = None, **options: Any) -> Any:
        """See RLlib's method."""
        newest = _of_newest(self, "last_infos", indices, agent_ids, options)
        return _whole(self).get_infos(indices, agent_ids, **options) if newest is None else newest

    def get_rewards(self, indices: Any = None, agent_ids: Any = None, **options: Any) -> Any:
        """See RLlib's method."""
        completed = _of_completed(self, "rewards", indices, agent_ids, options)
        return _whole(self).get_rewards(indices, agent_ids, **options) if completed is None else completed

    def get_actions(self, indices: Any = None, agent_ids: Any = None, **options: Any) -> Any:
        """See RLlib's method."""
        completed = _of_completed(self, "actions", indices, agent_ids, options)
        return _whole(self).get_actions(indices, agent_ids, **options) if completed is None else completed

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, "_origin") and name in RLlibEpisode.__slots__:
            view = self._origin[0]
            if name == "observation_space" and view.answers.gives_same(value):
                view.space = value
            elif name in OF_RECORD and not view.answers.agents:  # later, its agents' episodes have these, too
                view.answers.adopt(name, value)
            else:
                _whole(self)
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memo: dict) -> Any:
        return _whole(self).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _whole(self).__reduce_ex__(protocol)


def _of_newest(episode: Any, name: str, indices: Any, agent_ids: Any, options: dict[str, Any]) -> Any:
    """What the record answers to a getter that is asked for all agents' newest; None: only the whole episode knows."""
    if not isinstance(episode, _InView) or not is_last(indices) or agent_ids is not None or options:
        return None
    return getattr(episode._origin[0].answers, name)()


def _of_completed(episode: Any, name: str, indices: Any, agent_ids: Any, options: dict[str, Any]) -> Any:
    """The same to one that is asked for all steps of all agents; by env steps or not makes no difference then."""
    asks_for_all = indices is None and agent_ids is None and options.keys() <= {"env_steps"}
    if not asks_for_all or not isinstance(episode, _InView):
        return None
    view = episode._origin[0]
    return view.answers.of_completed_steps(name, view)


class AgentsInView(dict[Hashable, Any]):
    """The agents' episodes of one in view, which is made whole if somebody takes an agent away or adds one."""

    def __init__(self, view: EpisodeInView, agents: dict[Hashable, Any]):
        super().__init__(agents)
        self._view = view

    def _changed(self, method: str, *arguments: Any) -> Any:
        """What `method` of the whole episode's dict returns; this one has the same agents then."""
        self._view.make_whole()
        agents = self._view.episode.agent_episodes
        answer = getattr(agents, method)(*arguments)
        super().clear()
        super().update(agents)
        return answer

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self._changed("__setitem__", key, value)

    def __delitem__(self, key: Hashable) -> None:
        self._changed("__delitem__", key)

    def pop(self, key: Hashable, *default: Any) -> Any:
        """See dict."""
        return self._changed("pop", key, *default)

    def popitem(self) -> Any:
        """See dict."""
        return self._changed("popitem")

    def setdefault(self, key: Hashable, default: Any = None) -> Any:
        """See dict."""
        return self._changed("setdefault", key, default)

    def update(self, *others: Any, **named: Any) -> None:
        """See dict."""
        self._changed("update", dict(*others, **named))

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        self._changed("update", other)
        return self

    def clear(self) -> None:
        """See dict."""
        self._changed("clear")


def _whole(episode: Any) -> Any:
    """The episode made whole, if it was not: it is of RLlib's plain kind then, also where a method was taken before."""
    if isinstance(episode, _InView):
        episode._origin[0].make_whole()
    return episode


_kinds: dict[type, type] = {}


def _in_view(kind: type) -> type:
    """The kind whose episodes are in view."""
    if kind not in _kinds:
        _kinds[kind] = type(kind.__name__, (_InView, kind), {"__slots__": (), "__module__": kind.__module__})
    return _kinds[kind]
