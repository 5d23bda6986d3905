"""Writes the metrics of a training run to a CSV file and TensorBoard."""

import csv
import io
import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from fastmarl.core.checkpoint.sealed_json import read_file, replace_file
from fastmarl.core.errors import ConfigError, shown
from fastmarl.core.errors.packages import how_to_install
from fastmarl.core.objects.public import public

STEP = "step"  # name of the first column


@public("fastmarl.learning")
class MetricsWriter:
    """Writes runner metrics and additional numbers of a training loop, step by step.

    ```python
    with MetricsWriter(csv_path="run/metrics.csv", tensorboard_folder="run") as writer:
        writer.write(steps, runner.get_metrics(), {"loss": loss})
    ```

    Nested names are joined: `{"stage_time_ms": {"env": 1.0}}` becomes "stage_time_ms/env".

    A line of the CSV file is complete when `write()` returns, even if the process is killed right afterwards. When a
    new metric appears, the file is rewritten with an additional column. Missing metrics are left empty.

    Args:
        csv_path: Path of the CSV file; None to write no CSV file.
        tensorboard_folder: Directory for TensorBoard events; None to write no events.
        resume_step: Step to continue after, for example from a checkpoint; lines of later steps are dropped. None
            starts a new file.

    Raises:
        ConfigError: If TensorBoard is requested but not installed, or the file to resume was not written by this class.
    """

    def __init__(
        self,
        *,
        csv_path: str | os.PathLike | None = None,
        tensorboard_folder: str | os.PathLike | None = None,
        resume_step: int | None = None,
    ):
        self._is_closed = False
        self._events = None if tensorboard_folder is None else _summary_writer(tensorboard_folder, resume_step)
        self._file = None if csv_path is None else _CsvFile(Path(csv_path), resume_step)

    def write(self, step: int, *metrics: Mapping[str, Any]) -> None:
        """Write the metrics of a step.

        Args:
            step: Integer that increases from call to call, such as the total number of env steps.
            metrics: Nested dicts of numbers, or of arrays or tensors with a single number. If a name occurs twice, the
                last value is written. None values, such as percentiles of empty data, are skipped. The name "step" is
                reserved.

        Raises:
            ConfigError: If a value is not a number, a metric is named "step", or the writer was closed. Nothing is
                written.
        """
        if self._is_closed:
            raise ConfigError("this MetricsWriter was closed; create a new one, with resume_step to continue")
        try:
            step = operator.index(step)
        except TypeError:
            raise ConfigError(f"step must be an integer, got {shown(step)}; convert it with int()") from None
        values = {name: value for each in metrics for name, value in _flat(each).items()}
        if STEP in values:
            raise ConfigError(f"the metric name {STEP!r} is reserved for the step number; rename the metric")
        if self._file is not None:
            self._file.write(step, values)
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(name, value, step)
            self._events.flush()

    def close(self) -> None:
        """Close the files; closing twice is allowed."""
        self._is_closed = True
        if self._file is not None:
            self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _CsvFile:
    """A CSV file that is complete after each written line."""

    def __init__(self, path: Path, resume_step: int | None):
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        columns, rows = [STEP], list[list[str]]()
        if resume_step is not None and path.exists():
            columns, *rows = self._read()
            rows = [row for row in rows if int(row[0]) <= resume_step]
        self._replace(columns, rows)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if new := [name for name in values if name not in self._columns]:
            columns, *rows = self._read()
            before = self._file
            self._replace(columns + new, [row + [""] * len(new) for row in rows])
            before.close()
        row = [str(step), *(repr(values[name]) if name in values else "" for name in self._columns[1:])]
        self._append(_lines([row]))

    def _append(self, data: bytes) -> None:
        """Append all of `data` or nothing, because `write()` may write only a part if the disk is nearly full."""
        before, left = os.fstat(self._file.fileno()).st_size, data
        try:
            while left:
                left = left[self._file.write(left) :]
        except BaseException:
            self._file.truncate(before)
            raise

    def close(self) -> None:
        self._file.close()

    def _read(self) -> list[list[str]]:
        """Return all complete lines, starting with the column names."""
        data = read_file(self._path)
        try:
            lines = list(csv.reader(io.StringIO(data[: data.rfind(b"\n") + 1].decode())))
            steps = [int(line[0]) for line in lines[1:] if len(line) == len(lines[0])]
        except (ValueError, csv.Error):
            lines, steps = [], []
        if not lines or lines[0][:1] != [STEP] or len(steps) != len(lines) - 1:
            raise ConfigError(f"{self._path} is damaged or was not written by a MetricsWriter: expected {STEP!r} with "
                              f"integers as the first column; move it away to start a new file")  # fmt: skip
        return lines

    def _replace(self, columns: list[str], rows: list[list[str]]) -> None:
        """Replace the file content and open the file for appending."""
        replace_file(self._path, _lines([columns, *rows]))
        self._file = self._path.open("ab", buffering=0)  # one system call per line
        self._columns = columns


def _lines(rows: Iterable[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Flatten nested metrics to {joined name: number}."""
    found: dict[str, float] = {}
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{name}/")
        elif value is not None:
            found[name] = _number(name, value)
    return found


def _number(name: str, value: Any) -> float:
    is_array = isinstance(value, (np.ndarray, np.generic, torch.Tensor))
    if is_array and np.prod(value.shape) == 1:
        value = value.item()
    for kind in (bool, int, float):  # also converts enum members, which would be written as names
        if isinstance(value, kind):
            return kind(value)
    raise ConfigError(f"metrics must be numbers, but {name!r} is {shown(value)}")


def _summary_writer(folder: str | os.PathLike, resume_step: int | None) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(f"can't write TensorBoard events: {how_to_install('tensorboard')} ({error})") from error
    return SummaryWriter(os.fspath(folder), purge_step=None if resume_step is None else resume_step + 1)
