"""Writes episodes to Parquet files, in a thread of its own."""

import os
import queue
import time
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self

from fastmarl.config import check_integer, check_seconds
from fastmarl.episodes.chunk import Chunk
from fastmarl.episodes.multi_agent import MultiAgentEpisode
from fastmarl.errors import ConfigError, OfflineError
from fastmarl.offline import folder
from fastmarl.offline.arrow import load
from fastmarl.offline.chunks import chunk_table
from fastmarl.offline.form import Form
from fastmarl.offline.json_values import copied, to_json
from fastmarl.offline.part import Part
from fastmarl.offline.rows import RowMaker, Rows, steps_by_chunk

COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
ENOUGH_ROWS = 8_192  # are made into columns at once
ENOUGH_BYTES = 1024**3  # of a part before compression: readers have a whole part in memory
POLL_S = 0.5
WAIT_S = 0.1
MOST_WAITS = 50  # in a row, for more to write at once
MOST_TEXTS = 65_536


class ParquetWriter:
    """Writes chunks of episodes to a folder of Parquet files, see docs/offline.md.

    ```python
    with fastmarl.offline.ParquetWriter("data/run") as writer:
        writer.write(runner.sample())
    ```

    A thread of its own makes the files. `write()` hands over and returns; while `max_queue_size` calls wait to be
    written, it waits, too. What was handed over may be changed, except inside of infos: this is not seen. Files get
    their names when they are whole. If the process is killed, the part that was being written is lost, and no other.

    Where the folder has data, what is written is added to it, in files of other names.

    Args:
        path: the folder; it is made if it is not there.
        max_rows_per_file: steps of agents in a part at most, and so in each of its files. A chunk of an episode is in
            one part, also if it is longer. A part also ends where its columns have 1 GiB, before compression.
        compression: "zstd", "lz4", "snappy", "gzip", "brotli" or "none".
        columns: names of the modules' outputs to write, such as "action_logp", and "infos"; None: everything.
        next_obs: whether rows also have "new_obs", the observation after the step, as RLlib's reader needs it.
        worker_index: part of the files' names: of the runner.
        max_queue_size: calls of `write()` that may wait.
        timeout_s: seconds that `write()` waits for room, and `close()` for the last file.

    Raises:
        ConfigError: pyarrow is not installed, or an option is none.
        OfflineError: the folder can't be written to, or other files are in it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_rows_per_file: int = 1_000_000,
        compression: str = "zstd",
        columns: Collection[str] | None = None,
        next_obs: bool = False,
        worker_index: int = 0,
        max_queue_size: int = 4,
        timeout_s: float = 300.0,
    ):
        check_options(max_rows_per_file, compression, columns, worker_index, max_queue_size, timeout_s)
        load("pyarrow.parquet")
        self.path = folder.open_folder(path)
        folder.note_forms(self.path, {})
        self._timeout_s, self._pid, self._told = float(timeout_s), os.getpid(), False
        maker = RowMaker(None if columns is None else frozenset(columns), next_obs=bool(next_obs))
        files = _Files(self.path, maker, compression, int(max_rows_per_file), int(worker_index), bool(next_obs))
        self._thread = _WriterThread(files, int(max_queue_size))
        self._thread.start()
        # At the interpreter's end, and when nobody has this any more: the thread knows nothing of it.
        self._finalizer = weakref.finalize(self, _end, self._thread, self._timeout_s, self._pid)

    def write(self, episodes: Iterable[MultiAgentEpisode]) -> None:
        """Hand over chunks of episodes, as `sample()` returns them.

        Raises:
            OfflineError: the thread has failed since the last call, with what was handed over before; the writer was
                closed; or there was no room in `timeout_s`. These episodes are not written.
        """
        self._check_open()
        handed = [_snapshot(episode) for episode in episodes]
        if handed and not self._thread.put(handed, self._timeout_s):
            self._check_open()
            raise OfflineError(f"the thread that writes to {self.path} had no room for {len(handed)} more episodes in "
                               f"{self._timeout_s:g} s; is the disk slow? See timeout_s")  # fmt: skip

    def flush(self) -> None:
        """Wait until all that was handed over is in files that are whole; what follows comes into others.

        Raises:
            OfflineError: see write().
        """
        self._check_open()
        if not self._thread.flush(self._timeout_s):
            self._check_open()
            raise OfflineError(f"the files in {self.path} did not get done in {self._timeout_s:g} s")

    def close(self) -> None:
        """Write all that was handed over, and end the thread. Closing twice is fine.

        Raises:
            OfflineError: the thread has failed, and no call has said so yet; or it takes longer than `timeout_s`.
        """
        if self._pid == os.getpid():
            ended = self._thread.end(self._timeout_s)
            self._finalizer.detach()
            if not self._told:
                self._check_error()
            if not ended:
                raise OfflineError(f"the last file in {self.path} did not get done in {self._timeout_s:g} s")

    @property
    def writer_seconds(self) -> float:
        """CPU seconds that the thread has taken, as of its last work."""
        return self._thread.cpu_seconds

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise OfflineError(f"the writer to {self.path} belongs to another process; make one in this process")
        self._check_error()
        if self._thread.is_ending:
            raise OfflineError(f"the writer to {self.path} was closed; make a new one, which adds to the folder")

    def _check_error(self) -> None:
        error = self._thread.error
        if error is not None:
            self._told = True
            said = str(error) if isinstance(error, OfflineError) else f"{type(error).__name__}: {error}"
            raise OfflineError(f"episodes could not be written to {self.path}: {said}") from error


def check_options(
    max_rows_per_file: Any, compression: Any, columns: Any, worker_index: Any, max_queue_size: Any, timeout_s: Any
) -> None:
    """Raises ConfigError if one of them can't be right."""
    for name, value, least in (
        ("max_rows_per_file", max_rows_per_file, 1),
        ("worker_index", worker_index, 0),
        ("max_queue_size", max_queue_size, 1),
    ):
        check_integer(name, value, least=least)
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression must be one of {list(COMPRESSIONS)}, got {compression!r}")
    if isinstance(columns, str) or not (columns is None or isinstance(columns, Collection)):
        raise ConfigError(f"columns must be None or names of outputs, got {columns!r}")
    check_seconds("timeout_s", timeout_s)


def _snapshot(episode: MultiAgentEpisode) -> MultiAgentEpisode:
    """The same chunk in an object that nobody else has. The columns' arrays are not copied: they never change."""
    chunk = episode._chunk
    kept = MultiAgentEpisode.__new__(MultiAgentEpisode)
    if type(chunk) is not Chunk:
        unread, index, own = chunk
        kept._chunk = (unread, index, (own[0], copied(own[1]), own[2])) if own is not None and own[1] else chunk
        return kept
    built = chunk.agent_episodes
    kept._chunk = replace(
        chunk,
        agent_episodes=None if built is None else {agent: _own(each) for agent, each in built.items()},
        custom_data=copied(chunk.custom_data),
        common_infos=copied(chunk.common_infos),
        hanging_rewards=dict(chunk.hanging_rewards),
    )
    return kept


def _own(agent_episode: Any) -> Any:
    other = replace(agent_episode)
    other._id = agent_episode._id
    other._custom_data = copied(agent_episode._custom_data)
    return other


def _end(thread: "_WriterThread", timeout_s: float, pid: int) -> None:
    if os.getpid() == pid:
        thread.end(timeout_s)


class _Files:
    """Puts episodes into one part after the other."""

    def __init__(self, path: Path, maker: RowMaker, compression: str, max_rows: int, worker_index: int, next_obs: bool):
        self._path, self._maker, self._compression = path, maker, compression
        self._max_rows, self._worker_index, self._next_obs = max_rows, worker_index, next_obs
        self._part: Part | None = None
        self._number = 0
        self._forms: dict[str, Form] = {}
        self._texts: dict[tuple, str] = {}

    def add(self, episodes: list[MultiAgentEpisode], n_rows: list[int]) -> None:
        """Append these, which have so many steps each."""
        for some in self._fitting(episodes, n_rows):
            chunks, rows = self._tables(some)
            part = self._open()
            part.add(chunks, rows)
            if forms := {each.module_id: each.form for each in rows if self._forms.get(each.module_id) != each.form}:
                self._forms |= forms
                folder.note_forms(self._path, forms)
            if part.n_rows >= self._max_rows or part.n_bytes >= ENOUGH_BYTES:
                self.finish()

    def _tables(self, episodes: list[MultiAgentEpisode]) -> tuple[Any, list[Rows]]:
        """(their chunks, their rows). Where they can't be written, those before them are made whole."""
        first_chunk = 0 if self._part is None else self._part.n_chunks
        try:
            rows = self._maker.rows(episodes, first_chunk)
            n_steps = [
                steps_by_chunk(tables, first_chunk, len(episodes))
                for tables in ([each.table for each in rows], [each.lookback for each in rows])
            ]
            return chunk_table(episodes, self._text_of_ids, *n_steps, keeps_infos=self._maker.keeps_infos), rows
        except Exception:
            self.finish()
            raise

    def finish(self) -> None:
        """The part that is open is whole."""
        part, self._part = self._part, None
        if part is not None:
            try:
                part.finish()
            except BaseException:
                part.abandon()
                raise

    def abandon(self) -> None:
        if self._part is not None:
            self._part.abandon()
            self._part = None

    def _open(self) -> Part:
        if self._part is None:
            name, self._number = folder.claim(self._path, self._worker_index, self._number)
            self._number += 1
            self._part = Part(self._path, name, self._compression, next_obs=self._next_obs)
        return self._part

    def _fitting(self, episodes: list[MultiAgentEpisode], n_rows: list[int]) -> Iterator[list[MultiAgentEpisode]]:
        """These in order, so many at once as fit into the part that is open by then."""
        begin = 0
        while begin < len(episodes):
            used = 0 if self._part is None else self._part.n_rows
            end, total = begin + 1, used + n_rows[begin]
            if used and total > self._max_rows:
                self.finish()
                continue
            while end < len(episodes) and total + n_rows[end] <= self._max_rows:
                total += n_rows[end]
                end += 1
            yield episodes[begin:end]
            begin = end

    def _text_of_ids(self, agent_ids: tuple) -> str:
        key = (tuple(map(type, agent_ids)), agent_ids)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= MOST_TEXTS:
                self._texts.clear()
            text = self._texts[key] = to_json(list(agent_ids), "the agents' ids")
        return text


class _WriterThread(Thread):
    """Takes episodes from a queue, and writes them.

    Attributes:
        error: what has gone wrong; nothing is written after it.
        is_ending: whether `end()` was called.
        cpu_seconds: that it has taken.
    """

    def __init__(self, files: _Files, max_queue_size: int):
        super().__init__(name="fastmarl ParquetWriter", daemon=True)
        self._files = files
        self._queue: queue.Queue[list[MultiAgentEpisode] | Event] = queue.Queue(max_queue_size)
        self.error: BaseException | None = None
        self.is_ending = False
        self.cpu_seconds = 0.0
        self._door = Lock()  # nothing comes into the queue after the thread has found it empty for good
        self._is_shut = False
        self._n_waits = 0
        self._taken: list[MultiAgentEpisode] = []
        self._n_rows: list[int] = []  # of those, or a few more

    def put(self, item: list[MultiAgentEpisode] | Event, timeout_s: float) -> bool:
        """False: there was no room, or the thread has failed or ended."""
        deadline = time.monotonic() + timeout_s
        while self.error is None and self.is_alive():
            left = deadline - time.monotonic()
            with self._door:
                if self._is_shut:
                    return False
                try:
                    self._queue.put(item, timeout=min(POLL_S, max(0.0, left)))
                except queue.Full:
                    if left <= 0:
                        return False
                else:
                    return True
        return False

    def flush(self, timeout_s: float) -> bool:
        """False: it took longer, or the thread has failed."""
        done, deadline = Event(), time.monotonic() + timeout_s
        if not self.put(done, timeout_s):
            return False
        while not done.wait(POLL_S):
            if self.error is not None or not self.is_alive() or time.monotonic() > deadline:
                return False
        return self.error is None

    def end(self, timeout_s: float) -> bool:
        """Write what is left, and end. False: it took longer."""
        deadline = time.monotonic() + timeout_s
        self.is_ending = True
        while self.is_alive() and time.monotonic() < deadline:
            self.join(min(POLL_S, max(0.0, deadline - time.monotonic())))
        return not self.is_alive()

    def run(self) -> None:
        try:
            while not self._is_over():
                self._take()
            self._write()
            self._files.finish()
        except BaseException as error:
            self.error = error
            self._taken, self._n_rows = [], []
            self._files.abandon()
            while not self._queue.empty():  # the episodes' memory is free at once
                self._queue.get_nowait()
        finally:
            self.cpu_seconds = time.thread_time()

    def _is_over(self) -> bool:
        """Whether nothing is left, and nothing comes any more."""
        if self.is_ending and self._queue.empty():  # so nobody waits for room behind the door
            with self._door:
                self._is_shut = self._queue.empty()
        return self._is_shut

    def _take(self) -> None:
        try:
            item = self._queue.get(timeout=WAIT_S)
        except queue.Empty:
            self._n_waits += 1
            if self._n_waits >= MOST_WAITS:
                self._write()
            return
        self._n_waits = 0
        if isinstance(item, Event):
            self._write()
            self._files.finish()
            item.set()
            return
        self._taken += item
        self._n_rows += [episode.n_unbuilt_rows() or episode.agent_steps() for episode in item]
        del item
        if sum(self._n_rows) >= ENOUGH_ROWS:
            self._write()

    def _write(self) -> None:
        """Those that were taken."""
        if self._taken:
            taken, n_rows = self._taken, self._n_rows
            self._taken, self._n_rows = [], []
            self._files.add(taken, n_rows)
            self.cpu_seconds = time.thread_time()
