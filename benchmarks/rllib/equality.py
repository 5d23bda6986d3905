"""Compare the episodes that two runners returned."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from fastmarl.core.errors import FastmarlError
from fastmarl.core.spaces.structs import flatten_struct


class UnequalEpisodesError(FastmarlError):
    """The two runners returned different episodes, so their speeds can't be compared."""


def check_equal(theirs: list[MultiAgentEpisode], ours: list[MultiAgentEpisode]) -> None:
    """Compare times, flags, all columns (dtype, shape, bytes, lookback) and infos; ids and clocks may differ.

    Args:
        theirs, ours: Episodes of RLlib's runner and of ours.

    Raises:
        UnequalEpisodesError: If they differ; the message names the first difference.
    """
    for number, (one, other) in enumerate(zip_longest(theirs, ours)):
        if one is None or other is None:
            raise _unequal("episodes", len(theirs), len(ours))
        for want, got in zip_longest(_content(one), _content(other), fillvalue=("nothing more", None)):
            if want != got:
                raise _unequal(f"episode {number}, {want[0]}", f"{want[1]!r:.80}", f"{got[1]!r:.80}")


def check_alike(theirs: list[MultiAgentEpisode], ours: list[MultiAgentEpisode]) -> None:
    """Compare the names, dtypes and row shapes of the columns of each module's agents.

    Args:
        theirs, ours: Episodes of RLlib's runner and of ours.

    Raises:
        UnequalEpisodesError: If they differ; the message names the first difference.
    """
    want, got = _forms(theirs), _forms(ours)
    for key in want | got:
        if want.get(key) != got.get(key):
            raise _unequal(": ".join(key), want.get(key), got.get(key))


def _unequal(where: str, theirs: object, ours: object) -> UnequalEpisodesError:
    return UnequalEpisodesError(f"not equal to RLlib's episodes: {where}: {theirs} / {ours}")


def _forms(episodes: list[MultiAgentEpisode]) -> dict[tuple[str, str], set]:
    """Return (module, column) -> its dtypes and row shapes."""
    forms: dict[tuple[str, str], set] = {}
    for part in (part for episode in episodes for part in episode.agent_episodes.values()):
        for name, column in _columns(part, "observations", "actions", "rewards"):
            for path, leaf in flatten_struct(column.data):
                form = (np.asarray(leaf).dtype.str, np.shape(leaf)[1:])
                forms.setdefault((str(part.module_id), "/".join(map(str, (name, *path)))), set()).add(form)
    return forms


def _content(episode: MultiAgentEpisode) -> Iterator[tuple[str, Any]]:
    """Yield (name, comparable value) for everything that must be equal."""
    yield "time", (episode.env_t_started, episode.env_t)
    yield "flags", (episode.is_terminated, episode.is_truncated)
    for agent_id, part in episode.agent_episodes.items():
        at = f"agent {agent_id!r}: "
        yield at + "module", part.module_id
        yield at + "time", (part.t_started, part.t)
        yield at + "flags", (part.is_terminated, part.is_truncated)
        for name, column in _columns(part, "observations", "actions", "rewards", "infos"):
            yield at + name, (column.lookback, _comparable(column.data))


def _columns(part: SingleAgentEpisode, *own: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, RLlib's buffer) for the agent's own columns with these names and for all module outputs."""
    yield from ((name, getattr(part, name)) for name in own)
    yield from part.extra_model_outputs.items()


def _comparable(data: Any) -> Any:
    if isinstance(data, np.ndarray):
        return data.dtype.str, data.shape, data.tobytes()
    if isinstance(data, dict):
        return [(key, _comparable(value)) for key, value in data.items()]
    if isinstance(data, list | tuple):
        return [_comparable(value) for value in data]
    return type(data), repr(data)  # repr, as nan must equal nan and 0.0 must differ from -0.0
