"""A writer of episodes to Parquet files in a background thread."""

import os
import weakref
from collections.abc import Collection, Iterable
from dataclasses import replace
from threading import TIMEOUT_MAX
from typing import Any, Self

from fastmarl.core.episodes.chunk import Chunk
from fastmarl.core.episodes.growing import GrowingSource
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.readable import check_kind
from fastmarl.core.errors import ConfigError, OfflineError
from fastmarl.core.errors.checks import check_integer, check_seconds
from fastmarl.core.objects.public import public
from fastmarl.offline import folder
from fastmarl.offline.arrow import load
from fastmarl.offline.json_values import copied
from fastmarl.offline.parts import FileParts
from fastmarl.offline.rows import RowMaker
from fastmarl.offline.writer_thread import Parcel, WriterThread

COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")


@public("fastmarl.offline")
class ParquetWriter:
    """Writes episode chunks to a directory of Parquet files; see docs/offline.md.

    ```python
    with fastmarl.offline.ParquetWriter("data/run") as writer:
        writer.write(runner.sample())
    ```

    A background thread creates the files. `write()` returns immediately unless `max_queue_size` batches are already
    waiting, in which case it blocks. Episodes may be changed after the call, except for the contents of infos and
    arrays, which are not copied. Files get their final names when they are complete. If the process is killed, only the
    part being written is lost. A writer that is never closed finishes when it is garbage-collected or when the
    interpreter exits.

    If the directory already has data, new files are added with other names.

    Args:
        path: The directory, which is created if necessary.
        max_rows_per_file: Maximum number of agent steps in a part, and thus in each of its files. An episode chunk is
            never split, even if it is longer. A part is also complete when its uncompressed columns reach 1 GiB.
        compression: "zstd", "lz4", "snappy", "gzip", "brotli" or "none".
        columns: Names of module outputs to write, such as "action_logp", which may include "infos"; None writes
            everything.
        next_obs: Whether rows also have "new_obs", the observation after the step, which the RLlib reader requires.
        worker_index: Index of the runner, which becomes part of the file names.
        max_queue_size: Maximum number of waiting batches. A batch has 65,536 agent steps, or at most 32 MiB; the first
            one, for which row sizes are not known, has 1,024 agent steps.
        timeout_s: Seconds that `write()` waits for room and `close()` for the last file; may be infinite.

    Raises:
        ConfigError: If pyarrow is not installed, or an option is invalid.
        OfflineError: If the directory is not writable or contains other files.
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
        folder.compile_checksum()
        self.path = folder.open_folder(path)
        self._timeout_s = min(float(timeout_s), TIMEOUT_MAX)  # maximum wait for a lock
        self._pid, self._has_warned = os.getpid(), False
        maker = RowMaker(None if columns is None else frozenset(columns), next_obs=bool(next_obs))
        parts = FileParts(self.path, maker, compression, int(max_rows_per_file), int(worker_index))
        self._thread = WriterThread(parts, int(max_queue_size), self._timeout_s)
        self._thread.start()
        # Does not wait: the garbage collector may run this in a thread whose locks the writer thread needs.
        weakref.finalize(self, self._thread.begin_end).atexit = False

    def write(self, episodes: Iterable[MultiAgentEpisode]) -> None:
        """Queue episode chunks for writing.

        Args:
            episodes: The chunks, as returned by `sample()`.

        Raises:
            EpisodeError: If an item is not a fastmarl episode; no episode is written.
            OfflineError: If the thread has failed on earlier episodes, the writer was closed, or there was no room
                within `timeout_s`. The episodes are then not written.
        """
        self.write_once(self.prepared(episodes))

    def prepared(self, episodes: Iterable[MultiAgentEpisode]) -> Parcel:
        """Return a snapshot of the episodes for `write_once()`."""
        episodes = list(episodes)
        check_kind(episodes)
        return Parcel([_snapshot(episode) for episode in episodes])

    def write_once(self, parcel: Parcel) -> None:
        """Queue a parcel returned by `prepared()`.

        After an error or an interrupt, call it again with the same parcel; the episodes are written only once.

        Raises:
            OfflineError: As in `write()`.
        """
        self._check_open()
        if parcel.episodes and not self._thread.put(parcel, self._timeout_s):
            self._check_open()
            raise OfflineError(f"the writer to {self.path} had no room for {len(parcel.episodes)} more episodes "
                               f"in {self._timeout_s:g} s; if the disk is slow, increase timeout_s")  # fmt: skip

    def flush(self) -> None:
        """Wait until all queued episodes are in complete files; later episodes are written to new files.

        Raises:
            OfflineError: As in `write()`.
        """
        self._check_open()
        if not self._thread.flush(self._timeout_s):
            self._check_open()
            raise OfflineError(f"the files in {self.path} were not complete within {self._timeout_s:g} s")

    def close(self) -> None:
        """Write all queued episodes and stop the thread. Closing twice is allowed.

        Raises:
            OfflineError: If the thread takes longer than `timeout_s`, or has failed and no call has reported it yet.
        """
        if self._pid == os.getpid():
            ended = self._thread.end(self._timeout_s)
            if not self._has_warned:
                self._check_error()
            if not ended:
                raise OfflineError(f"the last file in {self.path} was not complete within {self._timeout_s:g} s")

    @property
    def writer_seconds(self) -> float:
        """CPU seconds used by the thread, updated whenever it has written something."""
        return self._thread.cpu_seconds

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise OfflineError(f"the writer to {self.path} belongs to another process; create one in this process")
        self._check_error()
        if self._thread.is_ending:
            raise OfflineError(f"the writer to {self.path} was closed; create a new one, which adds to the folder")

    def _check_error(self) -> None:
        error = self._thread.error
        if error is not None:
            self._has_warned = True
            said = str(error) if isinstance(error, OfflineError) else f"{type(error).__name__}: {error}"
            raise OfflineError(f"episodes could not be written to {self.path}: {said}") from error


def check_options(
    max_rows_per_file: Any, compression: Any, columns: Any, worker_index: Any, max_queue_size: Any, timeout_s: Any
) -> None:
    """Check the options of a `ParquetWriter`.

    Raises:
        ConfigError: If an option is invalid.
    """
    for name, value, least in (
        ("max_rows_per_file", max_rows_per_file, 1),
        ("worker_index", worker_index, 0),
        ("max_queue_size", max_queue_size, 1),
    ):
        check_integer(name, value, least=least)
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression must be one of {list(COMPRESSIONS)}, got {compression!r}")
    if isinstance(columns, str) or not (columns is None or isinstance(columns, Collection)):
        raise ConfigError(f"columns must be None or a collection of output names, got {columns!r}")
    check_seconds("timeout_s", timeout_s)


def _snapshot(episode: MultiAgentEpisode) -> MultiAgentEpisode:
    """Return a private copy of the chunk for the writer.

    Arrays of runner columns are not copied, since episode setters write to copies of them.
    """
    chunk = episode._chunk
    kept = MultiAgentEpisode.__new__(MultiAgentEpisode)
    if type(chunk) is not Chunk:
        unread, index, own = chunk
        # Copy custom data even if it is empty, since the dict of the chunk may change later.
        kept._chunk = chunk if own is None else (unread, index, (own[0], copied(own[1]), own[2]))
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
    source = agent_episode.source  # a source that was written to may be written to again
    other = agent_episode.another(GrowingSource.of(source) if isinstance(source, GrowingSource) else source)
    other._custom_data = copied(agent_episode._custom_data)
    return other
