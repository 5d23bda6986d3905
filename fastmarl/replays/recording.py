"""A reader of the action records in a directory."""

from __future__ import annotations

import itertools
import json
import operator
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastmarl.core.checkpoint.sealed_json import read_file
from fastmarl.core.errors import RecordingError
from fastmarl.core.objects.public import public
from fastmarl.core.store.lanes import FAILED, TERMINATED, TRUNCATED
from fastmarl.replays.blocks import Arrays, FileBlock, blocks_in, cant_read
from fastmarl.replays.fragment import OF_CHUNKS
from fastmarl.replays.meta import checked


class EpisodePart(NamedTuple):
    """The env steps of an episode from `begin` up to `end`, stored in a single block.

    Attributes:
        block: The block.
        chunk: Index of the chunk in the block.
        begin: First env step.
        end: Env step after the last one.
        flags: End flags of the episode.
    """

    block: FileBlock
    chunk: int
    begin: int
    end: int
    flags: int


@public("fastmarl.replays")
@dataclass(eq=False)
class RecordedEpisode:
    """Description of a recorded episode, without its actions.

    Attributes:
        number: Index in the record, as used in `fastmarl.replay(run, number)`.
        id_: Id of the episode, as in `MultiAgentEpisode.id_`.
        meta: Description of the runner from the JSON file next to the actions.
        env_index: Index of its env in the runner.
        reset_seed: Seed of the env reset.
        length: Number of recorded env steps.
        is_terminated: True if the episode terminated.
        is_truncated: True if the episode was truncated. If it neither terminated nor was truncated, it was dropped or
            still running when the record ended.
        is_failed: True if its env failed, which cut the episode short.
        missing: Reason why the episode cannot be replayed, or "".
        parts: Its parts in the blocks of the record, in order.
    """

    number: int
    id_: str
    meta: dict[str, Any] = field(repr=False)
    env_index: int
    reset_seed: int
    length: int = 0
    is_terminated: bool = False
    is_truncated: bool = False
    is_failed: bool = False
    missing: str = ""
    parts: list[EpisodePart] = field(default_factory=list, repr=False)

    @property
    def is_done(self) -> bool:
        """True if the episode terminated or was truncated."""
        return self.is_terminated or self.is_truncated

    @property
    def end(self) -> str:
        """How the episode ended: "failed", "terminated", "truncated" or "cut"."""
        if self.is_failed:
            return "failed"
        if self.is_done:
            return "terminated" if self.is_terminated else "truncated"
        return "cut"


@dataclass
class EpisodeActions:
    """Actions of an episode and fingerprints of their results.

    Attributes:
        actions: Env step -> agent name -> (module id, list of an array per action leaf). The last actions may have no
            recorded result if the env or the call failed.
        prints: (env step, agent name) -> fingerprint.
        modules: Module id -> form of its observations and actions.
        module_of: Agent name -> module id.
    """

    actions: dict[int, dict[str, tuple[str, list[np.ndarray]]]] = field(default_factory=dict)
    prints: dict[tuple[int, str], int] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    module_of: dict[str, str] = field(default_factory=dict)


@public("fastmarl.replays")
class Recording:
    """Episodes in a directory written by runners with `record_actions`.

    `recording[k]` returns an episode by index or id. If a runner restored a state in the middle of an episode, each
    continuation is a separate episode with the same id. A directory can be read while a runner writes to it; only
    complete blocks are visible.

    Args:
        folder: Directory passed as `record_actions`.

    Raises:
        RecordingError: If the directory contains no record, or a file is damaged.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        files = sorted(self.folder.glob("*.actions"))
        if not files:
            what = "is not a folder" if not self.folder.is_dir() else "contains no record of actions"
            raise RecordingError(f"{os.fspath(folder)!r} {what}; to write one, use a runner with "
                                 f"EnvRunnerConfig(record_actions=folder)")  # fmt: skip
        self._numbers = itertools.count()
        pieces: dict[str, list[_Piece]] = {}
        for path in files:
            self._read_file(path, pieces)
        histories = [history for of_id in pieces.values() for history in _histories(of_id)]
        self.episodes = [_episode(line) for _, line in sorted(histories, key=operator.itemgetter(0))]
        self._by_id: dict[str, list[RecordedEpisode]] = {}
        for number, episode in enumerate(self.episodes):
            episode.number = number
            self._by_id.setdefault(episode.id_, []).append(episode)

    def __repr__(self) -> str:
        n = len(self)
        return f"<{type(self).__name__} of {os.fspath(self.folder)!r}: {n:,} episode{'s' * (n != 1)}>"

    def __len__(self) -> int:
        return len(self.episodes)

    def __iter__(self) -> Iterator[RecordedEpisode]:
        return iter(self.episodes)

    def __getitem__(self, episode: int | str) -> RecordedEpisode:
        """Return an episode; raise RecordingError if no episode has this index or id, or several have this id."""
        if isinstance(episode, str) and (of_id := self._by_id.get(episode)):
            if len(of_id) > 1:
                raise RecordingError(f"{self.folder} has several histories of episode {episode!r}, because runners "
                                     f"restored states within it; pass one of the indices "
                                     f"{[each.number for each in of_id]}")  # fmt: skip
            return of_id[0]
        try:
            number = int(episode) if isinstance(episode, str) else operator.index(episode)
        except (TypeError, ValueError):
            number = -1
        if not 0 <= number < len(self.episodes):
            raise RecordingError(f"{self.folder} has no episode {episode!r}; pass an id, or an index below "
                                 f"{len(self.episodes)}; `fastmarl replay {self.folder}` lists them")  # fmt: skip
        return self.episodes[number]

    def _read_file(self, path: Path, pieces: dict[str, list[_Piece]]) -> None:
        try:
            meta = json.loads(read_file(path.with_suffix(".json")))
        except FileNotFoundError:
            if path.exists() and path.stat().st_size == 0:  # its runner was killed before it wrote anything
                return
            raise RecordingError(f"{path} has no description file {path.with_suffix('.json').name}") from None
        except ValueError as error:
            raise RecordingError(f"{path.with_suffix('.json')} is damaged: {error}") from error
        except OSError as error:
            raise cant_read(path.with_suffix(".json"), error) from error
        meta = checked(meta, path.with_suffix(".json"))
        for block, listed in blocks_in(path):
            columns = [listed[name].tolist() for name in OF_CHUNKS]
            ids = block.words.get("ids") or [block.words["run"] + number.tobytes().hex() for number in listed["number"]]
            for chunk, (id_, env, begin, end, flags, seed, _) in enumerate(zip(ids, *columns, strict=True)):
                part, of_id = EpisodePart(block, chunk, begin, end, flags), pieces.setdefault(id_, [])
                if not of_id or of_id[-1].block is not block:
                    previous = of_id[-1] if of_id and of_id[-1].block.path == path else None
                    of_id.append(_Piece(id_, next(self._numbers), meta, env, seed, previous))
                of_id[-1].parts.append(part)

    def read(self, episode: RecordedEpisode) -> EpisodeActions:
        """Return the actions of `episode`.

        Raises:
            RecordingError: If actions are missing or damaged.
        """
        if episode.missing:
            raise RecordingError(f"episode {episode.number} of {self.folder} can't be replayed: {episode.missing}")
        found = EpisodeActions()
        seen: dict[int, dict[str, np.ndarray]] = {}
        for part in episode.parts:
            block = part.block
            if id(block) not in seen:
                seen = {id(block): block.arrays()}
            add_part(found, seen[id(block)], block.words, part.chunk)
        return found


@dataclass(eq=False)
class _Piece:
    """Steps of an episode in a single block.

    Attributes:
        id_: Id of the episode.
        number: Position in reading order.
        meta: Description of the runner.
        env_index: Index of the env in the runner.
        reset_seed: Seed of the env reset.
        previous: The previous piece of the same episode in the same file.
        parts: Its parts; several if agents respawned.
    """

    id_: str
    number: int
    meta: dict[str, Any]
    env_index: int
    reset_seed: int
    previous: _Piece | None
    parts: list[EpisodePart] = field(default_factory=list)

    @property
    def block(self) -> FileBlock:
        return self.parts[0].block

    @property
    def begin(self) -> int:
        return self.parts[0].begin

    @property
    def end(self) -> int:
        return max(part.end for part in self.parts)

    @property
    def went_back(self) -> bool:
        """True if this piece does not continue the previous one, because a state was restored or the runner differs."""
        return self.previous is None or not self.previous.leads_to(self)

    def leads_to(self, later: _Piece) -> bool:
        """Return whether `later` could be the continuation of this piece."""
        return self.end == later.begin and not self.parts[-1].flags


def _histories(pieces: Iterable[_Piece]) -> Iterator[tuple[int, list[_Piece]]]:
    """Yield the histories of an episode as (position among all histories, pieces).

    There is one history, unless runners restored states in the middle of the episode.
    """
    before: dict[_Piece, _Piece | None] = {}
    places: dict[_Piece, int] = {}
    last = set(pieces)
    # Sort empty pieces first; the next piece begins at the same step.
    for piece in sorted(last, key=lambda each: (each.begin, each.end > each.begin and 1 + each.went_back, each.number)):
        earlier = before[piece] = _before(piece, before)
        if earlier is None or earlier not in last:
            places[piece] = piece.number
        else:
            places[piece] = places[earlier]
            last.remove(earlier)
    for piece in last:
        line = [piece]
        while (earlier := before[line[-1]]) is not None:
            line.append(earlier)
        yield places[piece], line[::-1]


def _before(piece: _Piece, earlier: Iterable[_Piece]) -> _Piece | None:
    """Return the piece that this one continues (the last candidate), or None if the beginning was not recorded."""
    if not piece.went_back:
        return piece.previous
    touching = [other for other in earlier if other.leads_to(piece)]
    if touching:
        return max(touching, key=lambda other: (other.number < piece.number, other.number))
    reaching = [other for other in earlier if other.end < piece.begin]  # with a gap of lost steps
    return max(reaching, key=lambda other: other.end, default=None)


def _episode(line: list[_Piece]) -> RecordedEpisode:
    """Combine the pieces of an episode, recording whether steps are missing."""
    first, parts = line[0], [part for piece in line for part in piece.parts]
    flags, at, missing = 0, 0, ""
    for part in sorted(parts, key=lambda each: (each.begin, each.end)):
        if part.begin > at:
            missing = (f"env steps {at} to {part.begin} were not recorded here; are they in another folder, or "
                       f"lost because of a full disk?")  # fmt: skip
        at = max(at, part.end)
        flags |= part.flags
    return RecordedEpisode(
        number=-1,
        id_=first.id_,
        meta=first.meta,
        env_index=first.env_index,
        reset_seed=first.reset_seed,
        length=at,
        is_terminated=bool(flags & TERMINATED),
        is_truncated=bool(flags & TRUNCATED),
        is_failed=bool(flags & FAILED),
        missing="its env was reset without a seed" if first.reset_seed < 0 else missing,
        parts=parts,
    )


def add_part(found: EpisodeActions, arrays: Arrays, words: dict[str, Any], chunk: int) -> None:
    """Add the actions and fingerprints of a chunk in a block to `found`."""
    lanes = arrays["lanes"].astype(np.int64)
    first = int(lanes[:chunk].sum())
    entries = range(first, first + int(lanes[chunk]))
    acted, came = arrays["acted"].astype(np.int64), arrays["came"].astype(np.int64)
    module_T = arrays["module"]
    for entry in entries:
        if not acted[entry] and not came[entry]:
            continue
        module = str(int(module_T[entry]))
        before = module_T[:entry] == module_T[entry]
        form, name = words["modules"][module], words["agents"][int(arrays["agent"][entry])]
        found.modules[form["id"]] = form
        found.module_of[name] = form["id"]
        rows = slice(start := int(acted[:entry][before].sum()), start + int(acted[entry]))
        leaves = [arrays[f"{module}.action.{index}"][rows] for index in range(len(form["actions"]))]
        dtypes = [np.dtype(dtype) for dtype, _ in form["actions"]]
        for i, env_t in enumerate(_env_ts(arrays, f"{module}.acts", rows, int(arrays["acts_from"][entry]))):
            action = [leaf[i : i + 1].astype(dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]
            found.actions.setdefault(env_t, {})[name] = form["id"], action
        rows = slice(start := int(came[:entry][before].sum()), start + int(came[entry]))
        env_ts = _env_ts(arrays, f"{module}.comes", rows, int(arrays["comes_at"][entry]))
        for env_t, number in zip(env_ts, arrays[f"{module}.print"][rows].tolist(), strict=True):
            found.prints[env_t, name] = number


def _env_ts(arrays: dict[str, np.ndarray], name: str, rows: slice, first: int) -> list[int]:
    """Return the env steps of the rows of an entry."""
    n = rows.stop - rows.start
    steps = arrays[name][rows].astype(np.int64) if name in arrays else np.ones(n, np.int64)
    if n:
        steps[0] = first
    return np.cumsum(steps).tolist()
