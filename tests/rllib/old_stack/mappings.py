"""Policy mapping functions of the old stack, which write down for whom they were asked, and what they saw."""

import random
from collections.abc import Callable, Hashable
from typing import Any

from rllib.differential import tape
from rllib.differential.worlds import Rules
from rllib.old_stack.notes import outline

Mapping = Callable[..., str]


BY_EPISODE: dict[str, Callable[[list[str], Hashable, Any], str]] = {
    "env": lambda names, agent, episode: names[episode.env_id % len(names)],
    "episode": lambda names, agent, episode: names[(hash(episode.episode_id) + len(str(agent))) % len(names)],
    "time": lambda names, agent, episode: names[(episode.length + 1) // 3 % len(names)],
}


def mapping_fn(kind: str, names: list[str], rules: Rules | None) -> Mapping:
    """The function of this kind that maps agents to some of `names`."""
    return _by_episode(kind, names) if kind in BY_EPISODE else KINDS[kind](names, rules)


def _by_episode(kind: str, names: list[str]) -> Mapping:
    def by_episode(agent_id: Hashable, episode: Any, worker: Any, **kwargs: Any) -> str:
        time = [worker.policy_map["p0"].global_timestep] if kind == "time" else []
        tape.note("mapping", repr(agent_id), *outline(episode), *time)
        return BY_EPISODE[kind](names, agent_id, episode)

    return by_episode


def _by_group(names: list[str], rules: Rules | None) -> Mapping:
    def by_group(agent_id: Hashable, episode: Any, worker: Any, **kwargs: Any) -> str:
        tape.note("mapping", repr(agent_id), tuple(sorted(kwargs)))
        return names[0] if rules is None else rules.group_of[agent_id]

    return by_group


def _random(names: list[str], rules: Rules | None) -> Mapping:
    def at_random(agent_id: Hashable, episode: Any, worker: Any, **kwargs: Any) -> str:
        tape.note("mapping", repr(agent_id))
        return random.choice(names)

    return at_random


def _plain(names: list[str], rules: Rules | None) -> Mapping:
    """As most users write it: it neither looks at the episode, nor writes anything down."""
    return lambda agent_id, episode, **kwargs: names[0] if rules is None else rules.group_of[agent_id]


def _unknown(names: list[str], rules: Rules | None) -> Mapping:
    return lambda agent_id, *args, **kwargs: "nobody"


def _raising(names: list[str], rules: Rules | None) -> Mapping:
    def raising(agent_id: Hashable, episode: Any, worker: Any, **kwargs: Any) -> str:
        tape.note("mapping", repr(agent_id))
        if tape.count("mapping", repr(agent_id)) == 3:
            raise ArithmeticError("this mapping fails")
        return names[0]

    return raising


KINDS: dict[str, Callable[[list[str], Rules | None], Mapping]] = {
    "group": _by_group,
    "plain": _plain,
    "random": _random,
    "unknown": _unknown,
    "raising": _raising,
}
