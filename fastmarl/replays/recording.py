"""Reads a folder with records of actions."""

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

from fastmarl.core.errors import RecordingError
from fastmarl.core.public import public
from fastmarl.core.store.lanes import FAILED, TERMINATED, TRUNCATED
from fastmarl.replays.blocks import Arrays, FileBlock, blocks_in, cant_read
from fastmarl.replays.fragment import OF_CHUNKS
from fastmarl.replays.meta import checked


class EpisodePart(NamedTuple):
    """The part of an episode in a block: its env steps from `begin` to `end`.

    Attributes:
        chunk: its number in the block.
        flags: of its end.
    """

    block: FileBlock
    chunk: int
    begin: int
    end: int
    flags: int


@public("fastmarl.replays")
@dataclass(eq=False)
class RecordedEpisode:
    """The description of an episode in the record, without its actions.

    Attributes:
        number: in the record: `fastmarl.replay(run, number)`.
        id_: as `MultiAgentEpisode.id_`.
        meta: of the runner, as in the JSON file beside the actions.
        env_index: of its env in the runner.
        reset_seed: what the env was reset with.
        length: env steps on record.
        is_terminated, is_truncated: how it ended; both False: it was running when the record ended, or was dropped.
        is_failed: its env failed, and it was cut where it stood.
        missing: why it can't be replayed; "": it can.
        parts: its parts in the record's blocks, in order.
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
        return self.is_terminated or self.is_truncated

    @property
    def end(self) -> str:
        """How it ended, in a word."""
        if self.is_failed:
            return "failed"
        if self.is_done:
            return "terminated" if self.is_terminated else "truncated"
        return "cut"


@dataclass
class EpisodeActions:
    """The actions of an episode, and the fingerprints of their outcomes.

    Attributes:
        actions: env step -> agent's name -> (module, an array for each leaf of the action). The last ones may have no
            result on record: the env failed, or the call did.
        prints: (env step, agent's name) -> fingerprint.
        modules: index -> its id and the forms of observations.
    """

    actions: dict[int, dict[str, tuple[str, list[np.ndarray]]]] = field(default_factory=dict)
    prints: dict[tuple[int, str], int] = field(default_factory=dict)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    module_of: dict[str, str] = field(default_factory=dict)


@public("fastmarl.replays")
class Recording:
    """The episodes in a folder that runners with `record_actions` have written to. `recording[k]` is one of them, by
    number or id.

    Where runners went back to a state in the midst of an episode, each of its courses is an episode, of the same id.
    It may be read while a runner writes: what is complete by now is there.

    Args:
        folder: as given to `record_actions`.

    Raises:
        RecordingError: there is no record in it, or a file is damaged.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        files = sorted(self.folder.glob("*.actions"))
        if not files:
            what = "is no folder" if not self.folder.is_dir() else "has no record of actions"
            raise RecordingError(f"{os.fspath(folder)!r} {what}; a runner with EnvRunnerConfig(record_actions=folder) "
                                 f"writes one")  # fmt: skip
        self._numbers = itertools.count()
        pieces: dict[str, list[_Piece]] = {}
        for path in files:
            self._read_file(path, pieces)
        courses = [course for of_id in pieces.values() for course in _courses(of_id)]
        self.episodes = [_episode(line) for _, line in sorted(courses, key=operator.itemgetter(0))]
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
        """Raises RecordingError if there is none of this number or id, or several of this id."""
        if isinstance(episode, str) and (of_id := self._by_id.get(episode)):
            if len(of_id) > 1:
                raise RecordingError(f"{self.folder} has several courses of the episode {episode!r}, as runners went "
                                     f"back to a state in it; give one of the numbers "
                                     f"{[each.number for each in of_id]}")  # fmt: skip
            return of_id[0]
        try:
            number = int(episode) if isinstance(episode, str) else operator.index(episode)
        except (TypeError, ValueError):
            number = -1
        if not 0 <= number < len(self.episodes):
            raise RecordingError(f"{self.folder} has no episode {episode!r}: give an id, or a number below "
                                 f"{len(self.episodes)}; `fastmarl replay {self.folder}` lists them")  # fmt: skip
        return self.episodes[number]

    def _read_file(self, path: Path, pieces: dict[str, list[_Piece]]) -> None:
        try:
            meta = json.loads(path.with_suffix(".json").read_bytes())
        except FileNotFoundError:
            if path.exists() and path.stat().st_size == 0:  # its runner ended before it began
                return
            raise RecordingError(f"{path} lacks its description, {path.with_suffix('.json').name}") from None
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
            RecordingError: some are missing, or damaged.
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
    """The steps of an episode that are in one block.

    Attributes:
        number: in the order in which they were read.
        meta, env_index, reset_seed: of the episode.
        previous: the one read before it, of the same file.
        parts: several, where agents have respawned.
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
        """Return true if the runner set a state before it, or was another one."""
        return self.previous is None or not self.previous.leads_to(self)

    def leads_to(self, later: _Piece) -> bool:
        """Return true if another one may go on from its end."""
        return self.end == later.begin and not self.parts[-1].flags


def _courses(pieces: Iterable[_Piece]) -> Iterator[tuple[int, list[_Piece]]]:
    """The courses of an episode, (place among all courses, pieces); there is one, unless runners went back to a state
    in it."""
    before: dict[_Piece, _Piece | None] = {}
    places: dict[_Piece, int] = {}
    last = set(pieces)
    # Those without steps come first: others begin where they end.
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
    """The piece from which this one goes on: the last that can be; None: its beginning is not on record."""
    if not piece.went_back:
        return piece.previous
    touching = [other for other in earlier if other.leads_to(piece)]
    if touching:
        return max(touching, key=lambda other: (other.number < piece.number, other.number))
    reaching = [other for other in earlier if other.end < piece.begin]  # what is between them was lost
    return max(reaching, key=lambda other: other.end, default=None)


def _episode(line: list[_Piece]) -> RecordedEpisode:
    """Put together what its pieces say; note what is missing."""
    first, parts = line[0], [part for piece in line for part in piece.parts]
    flags, at, missing = 0, 0, ""
    for part in sorted(parts, key=lambda each: (each.begin, each.end)):
        if part.begin > at:
            missing = (f"the env steps {at} to {part.begin} are not on record here; were they recorded into another "
                       f"folder, or lost with a full disk?")  # fmt: skip
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
    """Add what a block has of one chunk."""
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
    """The env steps of an entry's rows."""
    n = rows.stop - rows.start
    steps = arrays[name][rows].astype(np.int64) if name in arrays else np.ones(n, np.int64)
    if n:
        steps[0] = first
    return np.cumsum(steps).tolist()
