"""An episode as a mapping function sees it, in the midst of what RLlib does with it."""

from collections.abc import Callable, Hashable
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibEpisode

MappingFn = Callable[[Hashable, Any], str]  # (agent id, episode) -> module id


class _Reached(Exception):
    """RLlib's code asks for the module of the agent in question."""

    def __init__(self, episode: RLlibEpisode):
        self.episode = episode


class EpisodeInTheMaking:
    """Shows a mapping function its episode as RLlib's code would, in the midst of a reset, a step or a cut.

    Nothing is made before something is read that the outline lacks. Then RLlib's own method runs on a copy of the
    episode, and is stopped where it asks for the module of the agent in question.

    Args:
        outline: an episode of fastmarl's class with the slots that are known; the others are empty.
        mapping: module ids by agent id, of those that were asked for.
        replay: given a mapping function, makes the copy and calls RLlib's method on it.
    """

    def __init__(self, outline: Any, mapping: dict[Hashable, str], replay: Callable[[MappingFn], None]):
        self._episode = outline
        self._empty = [name for name in RLlibEpisode.__slots__ if not is_set(outline, name)]
        self._mapping = mapping
        self._replay = replay
        self._asked: Hashable = None
        self._is_over = False
        outline._origin = (self, 0)

    def ask(self, function: MappingFn, agent_id: Hashable) -> str:
        """The agent's module id."""
        self._asked = agent_id
        try:
            return function(agent_id, self._episode)
        finally:
            for name in self._empty:  # what was read is outdated
                if is_set(self._episode, name):
                    delattr(self._episode, name)

    def close(self) -> None:
        """No more is asked. RLlib's episode would go on from here, this one can't be read any more."""
        self._is_over = True

    def late_attributes(self, _: int) -> dict[str, Any]:
        """The slots that the outline lacks, as they are now."""
        if self._is_over:
            raise RuntimeError("an episode that policy_mapping_fn was given can be read during that call only")
        try:
            self._replay(self._answer)
        except _Reached as reached:
            made = reached.episode
            return {name: getattr(made, name) for name in self._empty if is_set(made, name)}
        raise AssertionError(f"RLlib does not ask for the module of agent {self._asked!r}")

    def _answer(self, agent_id: Hashable, episode: RLlibEpisode) -> str:
        if agent_id == self._asked:
            raise _Reached(episode)
        return self._mapping.get(agent_id, "")  # at a cut, RLlib asks for agents whose module it has forgotten


def is_set(episode: RLlibEpisode, slot: str) -> bool:
    """Whether there is something in this slot of RLlib's class; asking makes nothing."""
    try:
        getattr(RLlibEpisode, slot).__get__(episode)
    except AttributeError:
        return False
    return True
