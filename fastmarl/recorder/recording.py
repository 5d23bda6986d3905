"""Reads a folder with records of actions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastmarl.errors import RecordingError
from fastmarl.record.flags import FAILED, TERMINATED, TRUNCATED
from fastmarl.recorder.blocks import Block, blocks_in
from fastmarl.recorder.fragment import OF_CHUNKS
from fastmarl.recorder.meta import check_format

LISTED = [*OF_CHUNKS, "number"]


@dataclass(eq=False)
class RecordedEpisode:
    """What the record says of an episode, without its actions.

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
    parts: list[tuple[Block, int, list[str]]] = field(default_factory=list, repr=False)  # block, chunk, agents

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
    """What was done in an episode, and the fingerprints of what came of it.

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


class Recording:
    """The episodes in a folder that runners with `record_actions` have written to. `recording[k]` is one of them, by
    number or id.

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
        self.episodes: list[RecordedEpisode] = []
        self._by_id: dict[str, RecordedEpisode] = {}
        self._spans: dict[str, list[tuple[int, int]]] = {}  # by episode: first and last env step of each part
        for path in files:
            self._read_file(path)
        for episode in self.episodes:
            _close_up(episode, sorted(self._spans.pop(episode.id_)))

    def __len__(self) -> int:
        return len(self.episodes)

    def __iter__(self) -> Iterator[RecordedEpisode]:
        return iter(self.episodes)

    def __getitem__(self, episode: int | str) -> RecordedEpisode:
        """Raises RecordingError if there is none of this number or id."""
        if isinstance(episode, str) and episode in self._by_id:
            return self._by_id[episode]
        try:
            number = int(episode)
        except ValueError:
            number = -1
        if not 0 <= number < len(self.episodes):
            raise RecordingError(f"{self.folder} has no episode {episode!r}: give an id, or a number below "
                                 f"{len(self.episodes)}; `fastmarl replay {self.folder}` lists them")  # fmt: skip
        return self.episodes[number]

    def _read_file(self, path: Path) -> None:
        try:
            meta = json.loads(path.with_suffix(".json").read_text())
        except FileNotFoundError:
            if path.stat().st_size == 0:  # its runner ended before it began
                return
            raise RecordingError(f"{path} lacks its description, {path.with_suffix('.json').name}") from None
        except ValueError as error:
            raise RecordingError(f"{path.with_suffix('.json')} is damaged: {error}") from error
        check_format(meta, path)
        agents: list[str] = []
        for block in blocks_in(path):
            agents = [*agents, *block.words["agents"]] if block.words["agents"] else agents
            self._read_block(block, meta, agents)

    def _read_block(self, block: Block, meta: dict[str, Any], agents: list[str]) -> None:
        arrays = block.arrays(LISTED)
        columns = [arrays[name].tolist() for name in OF_CHUNKS]
        ids = block.words.get("ids") or [block.words["run"] + number.tobytes().hex() for number in arrays["number"]]
        for chunk, (id_, env, begin, end, flags, seed, _) in enumerate(zip(ids, *columns, strict=True)):
            episode = self._by_id.get(id_)
            if episode is None:
                episode = RecordedEpisode(len(self.episodes), id_, meta, env, seed)
                self._by_id[id_] = episode
                self.episodes.append(episode)
            episode.parts.append((block, chunk, agents))
            episode.is_terminated |= bool(flags & TERMINATED)
            episode.is_truncated |= bool(flags & TRUNCATED)
            episode.is_failed |= bool(flags & FAILED)
            self._spans.setdefault(id_, []).append((begin, end))

    def read(self, episode: RecordedEpisode) -> EpisodeActions:
        """Its actions.

        Raises:
            RecordingError: some are missing, or damaged.
        """
        if episode.missing:
            raise RecordingError(f"episode {episode.number} of {self.folder} can't be replayed: {episode.missing}")
        found = EpisodeActions()
        seen: dict[int, dict[str, np.ndarray]] = {}
        for block, chunk, agents in episode.parts:
            if id(block) not in seen:
                seen = {id(block): block.arrays()}
            add_part(found, seen[id(block)], block.words["modules"], chunk, agents)
        return found


def _close_up(episode: RecordedEpisode, spans: list[tuple[int, int]]) -> None:
    """Put together what the parts say of the episode's length; note what is missing."""
    at = 0
    for begin, end in spans:
        if begin > at:
            episode.missing = (f"the env steps {at} to {begin} are not on record here; were they recorded into another "
                               f"folder, or lost with a full disk?")  # fmt: skip
        at = max(at, end)
    episode.length = at
    if episode.reset_seed < 0:
        episode.missing = "its env was reset without a seed"


def add_part(
    found: EpisodeActions, arrays: dict[str, np.ndarray], modules: dict[str, Any], chunk: int, agents: list[str]
) -> None:
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
        form, name = modules[module], agents[int(arrays["agent"][entry])]
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
