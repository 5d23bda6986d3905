"""One agent's part of an episode in view: answered from the record as far as that goes, and made whole as late."""

from copy import deepcopy
from typing import Any

from ray.rllib.env.single_agent_episode import SingleAgentEpisode

# The slot that an agent's episode in view has for its own use; who reads `observations` gets the whole episode's.
_answers_slot = SingleAgentEpisode.observations  # type: ignore[attr-defined]


def agent_in_view(answers: Any, **known: Any) -> SingleAgentEpisode:
    """An agent's episode that is not made yet.

    Args:
        answers: what of it is known from the record; its `whole()` has it made.
        known: slots that don't change.
    """
    episode: SingleAgentEpisode = object.__new__(_AgentInView)
    _answers_slot.__set__(episode, answers)
    for name, value in known.items():
        object.__setattr__(episode, name, value)
    return episode


def become(episode: SingleAgentEpisode, made: SingleAgentEpisode) -> None:
    """Let the one that was in view have the content of `made`."""
    object.__setattr__(episode, "__class__", SingleAgentEpisode)
    for name in SingleAgentEpisode.__slots__:
        if hasattr(made, name):
            setattr(episode, name, getattr(made, name))


class _AgentInView(SingleAgentEpisode):
    """What an agent's episode answers without being made; it is RLlib's in all else."""

    __slots__ = ()
    is_in_view = True

    def __getattr__(self, name: str) -> Any:  # a slot that is empty
        if name not in SingleAgentEpisode.__slots__:
            raise AttributeError(f"{SingleAgentEpisode.__name__!r} object has no attribute {name!r}")
        return getattr(_whole(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "observation_space" and _answers(self).is_running:
            _answers(self).observation_space = value
        else:
            setattr(_whole(self), name, value)

    @property
    def observations(self) -> Any:
        """See RLlib's class."""
        return _whole(self).observations

    @property
    def observation_space(self) -> Any:
        """See RLlib's class."""
        return _answers(self).observation_space if _answers(self).is_running else _whole(self).observation_space

    @property
    def t(self) -> Any:
        """Agent steps since the episode's begin."""
        return _answers(self).t if _answers(self).is_running else _whole(self).t

    @property
    def t_started(self) -> Any:
        """Agent steps at the chunk's begin."""
        return _answers(self).t_started if _answers(self).is_running else _whole(self).t_started

    @property
    def is_terminated(self) -> Any:
        """As the env gave it."""
        return _answers(self).flags[0] if _answers(self).is_running else _whole(self).is_terminated

    @property
    def is_truncated(self) -> Any:
        """As the env gave it."""
        return _answers(self).flags[1] if _answers(self).is_running else _whole(self).is_truncated

    @property
    def is_numpy(self) -> bool:
        """Whether there are arrays in the place of lists."""
        return False if _answers(self).is_running else _whole(self).is_numpy

    def __len__(self) -> int:
        return _answers(self).n_steps if _answers(self).is_running else len(_whole(self))

    def get_return(self) -> Any:
        """See RLlib's method."""
        return sum(self.get_rewards())

    def get_observations(self, indices: Any = None, **options: Any) -> Any:
        """See RLlib's method."""
        if is_last(indices) and not options and _answers(self).has_newest:
            return _answers(self).newest
        return _whole(self).get_observations(indices, **options)

    def set_observations(self, *, new_data: Any, at_indices: Any = None, **options: Any) -> None:
        """See RLlib's method."""
        if is_last(at_indices) and not options and _answers(self).has_newest:
            _answers(self).newest = new_data
        else:
            _whole(self).set_observations(new_data=new_data, at_indices=at_indices, **options)

    def get_rewards(self, indices: Any = None, **options: Any) -> Any:
        """See RLlib's method."""
        if _is_all_or_last(indices, options) and _answers(self).is_running:
            rewards = _answers(self).rewards() if indices is None else _answers(self).last_reward()
            if rewards:
                return self._chosen(rewards, indices)
        return _whole(self).get_rewards(indices, **options)

    def get_actions(self, indices: Any = None, **options: Any) -> Any:
        """See RLlib's method."""
        actions = _answers(self).actions() if _is_all_or_last(indices, options) and _answers(self).is_running else None
        return self._chosen(actions, indices) if actions else _whole(self).get_actions(indices, **options)

    def _chosen(self, values: list[Any], indices: int | None) -> Any:
        return values[_answers(self).lookback :] if indices is None else values[indices]

    def get_infos(self, indices: Any = None, **options: Any) -> Any:
        """See RLlib's method."""
        if is_last(indices) and not options and _answers(self).is_running:
            info = _answers(self).newest_info()
            if info is not None:
                return info
        return _whole(self).get_infos(indices, **options)

    def __deepcopy__(self, memo: dict) -> Any:
        return deepcopy(_whole(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _whole(self).__reduce_ex__(protocol)


def _is_all_or_last(indices: Any, options: dict[str, Any]) -> bool:
    return not options and (indices is None or is_last(indices))


def is_last(indices: Any) -> bool:
    """Whether a getter's `indices` are those of the newest value."""
    return type(indices) is int and indices == -1


def _answers(episode: Any) -> Any:
    return _answers_slot.__get__(episode)


def _whole(episode: Any) -> Any:
    """The episode made whole: it is of RLlib's plain kind then, also where a method was taken before."""
    if isinstance(episode, _AgentInView):
        _answers(episode).whole()
    return episode
