"""Mapping functions that look at the episode, or choose by chance.

Projects choose by `hash(episode.id_)`. Ids are random, other ones in each run; so that two runs can be compared, here
`Hashes` makes a number of an id that depends on how many ids came before.
"""

import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np


class Hashes(dict[str, int]):
    """Id -> its hash."""

    def __missing__(self, id_: str) -> int:
        self[id_] = zlib.crc32(str(len(self)).encode())
        return self[id_]


def by_id() -> Callable[..., str]:
    """ "main" plays on either side, as the hash of the episode's id will have it."""
    hashes = Hashes()

    def main_or_random(agent_id: Any, episode: Any, **kwargs: Any) -> str:
        return "main" if (hashes[episode.id_] % 2 == 0) == (agent_id == "player1") else "random"

    return main_or_random


def against_league(opponents: list[str]) -> Callable[..., str]:
    """ "main" plays one of these, drawn with a generator of the episode's own."""
    hashes = Hashes()

    def against(agent_id: Any, episode: Any, **kwargs: Any) -> str:
        number = hashes[episode.id_]
        if (number % 2 == 0) == (agent_id == "player_0"):
            return "main"
        return str(np.random.default_rng(number).choice(opponents))

    return against


def by_chance(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    """Lights have a policy of their own, cars one of two."""
    return "light" if agent_id.startswith("traffic_light_") else random.choice(["car1", "car2"])


def by_crowd(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    """Cars drive otherwise when many have been there before."""
    if agent_id.startswith("traffic_light_"):
        return "light"
    return "car1" if len(episode.agent_episodes) < 4 else "car2"
