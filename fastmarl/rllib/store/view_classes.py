"""View classes: subclasses of RLlib's episodes that answer common queries before the full episode is built.

Their data is in an EpisodeInView. Methods check the class of the object first, because a callback may keep a bound
method and call it after the full episode was built.
"""

from collections.abc import Callable, Hashable
from copy import deepcopy
from functools import cache, partialmethod
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from fastmarl.rllib.store.lane_steps import actions_of, last_action_of, last_reward_of, rewards_of


def _answered(name: str) -> property:
    """Return a property that reads this attribute of the EpisodeInView."""
    return property(lambda episode: getattr(episode._origin[0], name), doc="As in RLlib's class.")


def _getter(name: str) -> Callable[..., Any]:
    """Return a getter of this column that the view answers if possible, otherwise the RLlib method."""

    def get(self: Any, indices: Any = None, agent_ids: Any = None, **options: Any) -> Any:
        answer = self._origin[0].get(name, indices, agent_ids, options) if isinstance(self, _InView) else None
        return getattr(_built(self), f"get_{name}")(indices, agent_ids, **options) if answer is None else answer

    return get


class _InView:
    """Methods and properties of an episode that are answered from its record."""

    __slots__ = ()
    _origin: Any

    env_t, agent_ids = _answered("env_t"), _answered("agent_ids")
    is_terminated, is_truncated = _answered("is_terminated"), _answered("is_truncated")
    get_observations, get_infos = _getter("observations"), _getter("infos")
    get_rewards, get_actions = _getter("rewards"), _getter("actions")

    @property
    def agent_episodes(self) -> Any:
        """Agent id -> agent episode, or a view of it."""
        agents = self._origin[0].agent_episodes()
        return _built(self).agent_episodes if agents is None else agents

    def get_return(self, include_hanging_rewards: bool = False) -> Any:
        known = self._origin[0].get_return() if isinstance(self, _InView) and not include_hanging_rewards else None
        return _built(self).get_return(include_hanging_rewards) if known is None else known

    def get_duration_s(self) -> float:
        return self._origin[0].get_duration_s() if isinstance(self, _InView) else _built(self).get_duration_s()

    def get_agents_that_stepped(self) -> set[Hashable]:
        known = self._origin[0].get_agents_that_stepped() if isinstance(self, _InView) else None
        return _built(self).get_agents_that_stepped() if known is None else known

    def get_agents_to_act(self) -> set[Hashable]:
        """Return the agents observed in the last env step that have not ended."""
        known = self._origin[0].get_agents_to_act() if isinstance(self, _InView) else None
        return _built(self).get_agents_to_act() if known is None else known

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, "_origin") and name in RLlibEpisode.__slots__ and not self._origin[0].takes(name, value):
            _built(self)
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memo: dict) -> Any:
        return _built(self).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _built(self).__reduce_ex__(protocol)


def _built(episode: Any) -> Any:
    """Build the full episode if it is a view, which changes the class of the object, and return it."""
    if isinstance(episode, _InView):
        episode._origin[0].build()
    return episode


@cache
def in_view_kind(kind: type) -> type:
    """Return the subclass of an episode class whose instances are views, cached."""
    return type(kind.__name__, (_InView, kind), {"__slots__": (), "__module__": kind.__module__})


class AgentsInView(dict[Hashable, Any]):
    """Agent episodes of a view; removing or adding an agent builds the full episode first.

    Args:
        view: The EpisodeInView of the episode.
    """

    def __init__(self, view: Any):
        super().__init__()
        self._view = view

    def show(self, agents: dict[Hashable, Any]) -> None:
        """Replace the content with these agents."""
        super().clear()
        super().update(agents)

    def _change(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the dict of the full episode, then copy the content of that dict."""
        self._view.build()
        agents = self._view.episode.agent_episodes
        answer = getattr(agents, method)(*arguments, **named)
        self.show(agents)
        return answer

    __setitem__ = partialmethod(_change, "__setitem__")  # type: ignore[assignment]
    __delitem__ = partialmethod(_change, "__delitem__")  # type: ignore[assignment]
    pop = partialmethod(_change, "pop")  # type: ignore[assignment]
    popitem = partialmethod(_change, "popitem")  # type: ignore[assignment]
    setdefault = partialmethod(_change, "setdefault")  # type: ignore[assignment]
    update = partialmethod(_change, "update")  # type: ignore[assignment]
    clear = partialmethod(_change, "clear")  # type: ignore[assignment]

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc,override]
        self.update(other)
        return self

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


# The slot in which a view of an agent episode stores its data; a property overrides `observations`.
_place = SingleAgentEpisode.observations  # type: ignore[attr-defined]


def agent_in_view(view: Any, lane: int, **known: Any) -> SingleAgentEpisode:
    """Create a view of an agent episode.

    Args:
        view: The EpisodeInView of the episode.
        lane: Lane of the agent.
        known: Values of constant slots.
    """
    episode: SingleAgentEpisode = object.__new__(_AgentInView)
    _place.__set__(episode, (view, lane))
    for name, value in known.items():
        object.__setattr__(episode, name, value)
    return episode


def become(episode: SingleAgentEpisode, made: SingleAgentEpisode) -> None:
    """Turn a view into a plain agent episode with the content of `made`."""
    object.__setattr__(episode, "__class__", SingleAgentEpisode)
    for name in SingleAgentEpisode.__slots__:
        if hasattr(made, name):
            setattr(episode, name, getattr(made, name))


def _agent_answer(name: str, answer: Callable[[Any, int], Any]) -> property:
    """Return a property that calls `answer(view, lane)` as long as the episode is a view."""

    def get(episode: Any) -> Any:
        place = _running(episode)
        return getattr(_built_agent(episode), name) if place is None else answer(*place)

    return property(get, doc="As in RLlib's class.")


class _AgentInView(SingleAgentEpisode):
    """Methods and properties of an agent episode that are answered from the record."""

    __slots__ = ()

    observations = property(lambda episode: _built_agent(episode).observations)
    observation_space = _agent_answer("observation_space", lambda view, lane: view.space_of(lane))
    t = _agent_answer("t", lambda view, lane: int(view.store.table.t_started_L[lane]) + view.n_steps(lane))
    t_started = _agent_answer("t_started", lambda view, lane: int(view.store.table.t_started_L[lane]))
    is_terminated = _agent_answer("is_terminated", lambda view, lane: view.flags_of(lane)[0])
    is_truncated = _agent_answer("is_truncated", lambda view, lane: view.flags_of(lane)[1])
    is_numpy = _agent_answer("is_numpy", lambda view, lane: False)

    def __getattr__(self, name: str) -> Any:  # called for empty slots
        if name not in SingleAgentEpisode.__slots__:
            raise AttributeError(f"{SingleAgentEpisode.__name__!r} object has no attribute {name!r}")
        return getattr(_built_agent(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "observation_space" and (place := _running(self)):
            view, lane = place
            view.store.spaces[lane] = value
        else:
            setattr(_built_agent(self), name, value)

    def __len__(self) -> int:
        if place := _running(self):
            view, lane = place
            return view.n_steps(lane)
        return len(_built_agent(self))

    def get_return(self) -> Any:
        return sum(self.get_rewards())

    def get_observations(self, indices: Any = None, **options: Any) -> Any:
        if is_last(indices) and not options and (place := _running(self)):
            view, lane = place
            if lane in view.passing:
                return view.passing[lane]
        return _built_agent(self).get_observations(indices, **options)

    def set_observations(self, *, new_data: Any, at_indices: Any = None, **options: Any) -> None:
        if is_last(at_indices) and not options and (place := _running(self)):
            view, lane = place
            if lane in view.passing:
                view.passing[lane] = new_data
                return
        _built_agent(self).set_observations(new_data=new_data, at_indices=at_indices, **options)

    def get_rewards(self, indices: Any = None, **options: Any) -> Any:
        if not options and (indices is None or is_last(indices)) and (place := _running(self)):
            view, lane = place
            rewards = rewards_of(view.store, lane) if indices is None else last_reward_of(view.store, lane)
            if rewards:
                return _chosen(rewards, indices, *place)
        return _built_agent(self).get_rewards(indices, **options)

    def get_actions(self, indices: Any = None, **options: Any) -> Any:
        if not options and (indices is None or is_last(indices)) and (place := _running(self)):
            view, lane = place
            actions = actions_of(view.store, lane) if indices is None else last_action_of(view.store, lane)
            if actions:
                return _chosen(actions, indices, *place)
        return _built_agent(self).get_actions(indices, **options)

    def get_infos(self, indices: Any = None, **options: Any) -> Any:
        if is_last(indices) and not options and (place := _running(self)):
            view, lane = place
            if (info := view.info_of(lane)) is not None:
                return info
        return _built_agent(self).get_infos(indices, **options)

    def __deepcopy__(self, memo: dict) -> Any:
        return deepcopy(_built_agent(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _built_agent(self).__reduce_ex__(protocol)


def is_last(indices: Any) -> bool:
    """Return True if `indices` of a getter select the latest value."""
    return type(indices) is int and indices == -1


def _chosen(values: list[Any], indices: int | None, view: Any, lane: int) -> Any:
    """Return the last value, or all values of this chunk without its lookback."""
    return values[view.store.table.lookback_L[lane] :] if indices is None else values[indices]


def _running(episode: Any) -> tuple[Any, int] | None:
    """Return (view, lane) of a view of an agent episode, or None if the full episode has been built."""
    if not isinstance(episode, _AgentInView):
        return None
    place: tuple[Any, int] = _place.__get__(episode)
    view, _ = place
    if view.is_built:
        return None
    view.check_open()
    return place


def _built_agent(episode: Any) -> Any:
    """Build the full agent episode if it is a view, which changes the class of the object, and return it."""
    if isinstance(episode, _AgentInView):
        view, _ = _place.__get__(episode)
        view.build_agent(episode)
    return episode
