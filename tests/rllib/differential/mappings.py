"""Policy mapping functions that log the agents that they are called for, and the data that they read.

Each spells out its reads of the episode, as users' functions do, so that its bytecode shows them.
"""

import functools
import zlib
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import tree
from rllib.differential import tape
from rllib.differential.worlds import Rules

Mapping = Callable[..., str]


BY_AGENT: dict[str, Callable[[list[str], Rules | None, Hashable], str]] = {
    "group": lambda names, rules, agent: rules.group_of[agent],
    "name": lambda names, rules, agent: names[zlib.crc32(str(agent).encode()) % len(names)],
    "role": lambda names, rules, agent: names[int(str(agent).startswith(("adversary", "listener")))],
}


def mapping_fn(names: list[str], rules: Rules | None, kind: str) -> Mapping:
    """One of BY_AGENT or of BY_EPISODE."""
    if kind in BY_EPISODE:
        return BY_EPISODE[kind](names)

    def by_agent(agent_id: Hashable, episode: Any, **kwargs: Any) -> str:
        tape.note("mapping", repr(agent_id))
        return BY_AGENT[kind](names, rules, agent_id)

    return by_agent


def _by_time(names: list[str]) -> Mapping:
    def by_time(agent_id: Hashable, episode: Any, **kwargs: Any) -> str:
        tape.note("mapping", repr(agent_id), episode.env_t, episode.env_t_started)
        return names[episode.env_t // 4 % len(names)]

    return by_time


def _by_having_steps(names: list[str]) -> Mapping:
    def by_having_steps(agent_id: Hashable, episode: Any, **kwargs: Any) -> str:
        tape.note("mapping", repr(agent_id))
        if episode and hash(episode.id_) >= -(2**63):
            return names[-1]
        return names[0]

    return by_having_steps


def _by_id(names: list[str]) -> Mapping:
    def by_id(agent_id: Hashable, episode: Any, **kwargs: Any) -> str:
        tape.note("mapping", repr(agent_id))
        return names[0] if episode.id_.startswith("env=0|") else names[-1]

    return by_id


def _by_arrival(names: list[str]) -> Mapping:
    def by_arrival(agent_id: Hashable, episode: Any, **kwargs: Any) -> str:
        tape.note("mapping", repr(agent_id))
        return names[len(episode.agent_episodes) % len(names)]

    return by_arrival


def _by_all_there_is(names: list[str]) -> Mapping:
    def by_all_there_is(agent_id: Hashable, episode: Any) -> str:
        tape.note("mapping", repr(agent_id), *_look(episode))
        return names[len(_parts(episode)) % len(names)]

    return by_all_there_is


class _Chooser:
    """A callable object, without a __code__ and not hashable."""

    __hash__: Any = None

    def __init__(self, names: list[str]):
        self._names = names
        self.__qualname__ = "_Chooser"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, agent_id: Hashable, episode: Any) -> str:
        tape.note("mapping", repr(agent_id), episode.env_t, sorted(map(repr, episode.agent_ids)))
        return self._names[len(episode.agent_ids) % len(self._names)]


def _cached(names: list[str]) -> Mapping:
    @functools.cache
    def choose(agent_id: Hashable, episode: Any) -> str:
        tape.note("mapping", repr(agent_id), len(episode), episode.env_t)
        return names[len(episode) % len(names)]

    return choose


def _partial(names: list[str]) -> Mapping:
    function: Any = functools.partial(_by_all_there_is(names))
    function.__qualname__ = "partial"
    return function


BY_EPISODE: dict[str, Callable[[list[str]], Mapping]] = {
    "id": _by_id,
    "time": _by_time,
    "having steps": _by_having_steps,
    "arrival": _by_arrival,
    "all there is": _by_all_there_is,
    "partial": _partial,
    "object": _Chooser,
    "cached": _cached,
}


def _look(episode: Any) -> list[str]:
    """Return the data that an episode shows during a reset, step or cut."""
    seen: list[Any] = [episode.env_t, episode.env_t_started, len(episode), episode.is_terminated, episode.is_truncated]
    for agent_id, part in episode.agent_episodes.items():
        seen += [agent_id, part.module_id, part.t, part.t_started, part.is_done, part.is_numpy]
        for name in ("observations", "actions", "rewards", "infos"):
            buffer = getattr(part, name)
            seen += [buffer.lookback, *(_plain(item) for item in buffer.data)]
        for key in sorted(part.extra_model_outputs):
            seen += [key, *(_plain(item) for item in part.extra_model_outputs[key].data)]
    for agent_id, times in episode.env_t_to_agent_t.items():
        seen += [agent_id, times.lookback, list(times.data)]
    for name in ("_hanging_actions_end", "_hanging_rewards_end", "_hanging_rewards_begin", "_agent_to_module_mapping"):
        seen += [name, *((key, _plain(value)) for key, value in getattr(episode, name).items())]
    return [repr(item) for item in seen]


def _plain(value: Any) -> Any:
    """Convert to plain values, equal for equal Python scalars and rows of an array."""
    return tree.map_structure(lambda leaf: np.asarray(leaf).tolist(), value)


def _parts(episode: Any) -> dict:
    return episode.agent_episodes
