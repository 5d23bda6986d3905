"""Checks of readers and writers: member -> its answer on a face; those `ALONE` are true on ours."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def _written(f: Any, n: int = 2) -> Iterator[Any]:
    """A writer that has written n batches of 6 steps, and its folder."""
    with tempfile.TemporaryDirectory() as folder:
        writer = f.JsonWriter(folder, f.worker.io_context, 10**6, [])
        for _ in range(n):
            writer.write(f.MultiAgentBatch({"default_policy": f.batch(), "p1": f.batch()}, 6))
        yield writer, Path(folder)
        writer.cur_file.close()


def _close(reader: Any) -> None:
    """Close RLlib's file, which its reader leaves open."""
    if hasattr(reader.cur_file, "close"):
        reader.cur_file.close()


def _reader(look: Any, *, of_worker: bool = True) -> Any:
    def check(f: Any) -> Any:
        with _written(f) as (_, folder):
            reader = f.JsonReader(str(folder), f.io_worker.io_context if of_worker else None)
            try:
                return look(f, reader)
            finally:
                _close(reader)

    return check


def _writer(look: Any) -> Any:
    def check(f: Any) -> Any:
        with _written(f) as (writer, folder):
            return look(f, writer, folder)

    return check


def _mixed(f: Any) -> Any:
    with _written(f) as (_, folder):
        mixed = f.MixedInput({str(folder): 0.75, "sampler": 0.25}, f.io_worker.io_context)
        try:
            return len(mixed.choices), list(mixed.p), mixed.next().count in (6, 10, 12)
        finally:
            _close(mixed.choices[0])


class _Counter:
    """A reader of numbers."""

    n = 0

    def next(self) -> int:
        self.n += 1
        return self.n


def _shuffled(f: Any) -> Any:
    plain, shuffled = f.ShuffledInput(_Counter()), f.ShuffledInput(_Counter(), 4)
    first = [plain.next() for _ in range(3)], shuffled.next() in range(1, 6)
    return *first, shuffled.n, shuffled.child.n, len(shuffled.buffer)


OF_READERS = {
    "__init__": _reader(lambda f, reader: reader.next().count, of_worker=False),
    "batch_size": _reader(lambda f, reader: reader.batch_size, of_worker=False),
    "default_policy": _reader(lambda f, reader: reader.default_policy is f.io_worker.get_policy()),
    "ioctx": _reader(lambda f, reader: reader.ioctx.worker is f.io_worker),
    "next": _reader(lambda f, reader: {id_: np.asarray(batch["rewards"]) for id_, batch in
                                       reader.next().policy_batches.items()}, of_worker=False),
    "policy_map": _reader(lambda f, reader: sorted(reader.policy_map.keys())),
    "read_all_files": _reader(lambda f, reader: [batch.count for batch in reader.read_all_files()]),
    "files": _reader(lambda f, reader: [Path(path).suffix for path in reader.files]),
}  # fmt: skip
READERS_ALONE = {"cur_file": _reader(lambda f, reader: (reader.next(), reader.cur_file == reader.files[0])[1])}
OF_WRITERS = {
    "__init__": _writer(lambda f, writer, folder: len(list(folder.glob("*.json")))),
    "bytes_written": _writer(lambda f, writer, folder: writer.bytes_written > 100),
    "compress_columns": _writer(lambda f, writer, folder: list(writer.compress_columns)),
    "cur_file": _writer(lambda f, writer, folder: Path(writer.cur_file.name).parent == folder),
    "file_index": _writer(lambda f, writer, folder: writer.file_index),
    "ioctx": _writer(lambda f, writer, folder: writer.ioctx.worker_index),
    "max_file_size": _writer(lambda f, writer, folder: writer.max_file_size),
    "path": _writer(lambda f, writer, folder: Path(writer.path) == folder),
    "path_is_uri": _writer(lambda f, writer, folder: writer.path_is_uri),
    "write": _writer(lambda f, writer, folder: len(next(folder.glob("*.json")).read_text().splitlines())),
}
OF_IO_CONTEXTS = {
    "__init__": lambda f: f.IOContext().worker,
    "config": lambda f: f.worker.io_context.config is f.worker.config,
    "default_sampler_input": lambda f: f.worker.io_context.default_sampler_input() is f.worker.sampler,
    "input_config": lambda f: f.fresh(input_config={"x": 1}).io_context.input_config,
    "log_dir": lambda f: f.fresh({"log_dir": "logs"}).io_context.log_dir,
    "output_config": lambda f: f.worker.io_context.output_config,
    "worker": lambda f: f.worker.io_context.worker is f.worker,
    "worker_index": lambda f: f.fresh({"worker_index": 2, "num_workers": 2}).io_context.worker_index,
}
OF_MIXED_INPUTS = dict.fromkeys(("__init__", "choices", "next", "p"), _mixed)
OF_SHUFFLED_INPUTS = dict.fromkeys(("__init__", "buffer", "child", "n", "next"), _shuffled)
