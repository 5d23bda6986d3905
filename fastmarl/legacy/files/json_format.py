"""Batches as lines of JSON, in the format of RLlib's old API stack: its JsonReader reads what is written here.

The format has no room for checksums of the lines. They are in a hidden file beside that of the lines; files without
one, such as RLlib's, are read as they are.
"""

import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.columns import Columns
from fastmarl.core.errors import BatchError
from fastmarl.legacy.batches.packing import is_packed, pack, unpack
from fastmarl.legacy.batches.sample_batch import MultiAgentBatch, SampleBatch
from fastmarl.offline.json_values import plain_text

Spaces = tuple[gym.Space | None, gym.Space | None]  # of observations and actions
OBSERVATIONS = (Columns.OBS, Columns.NEXT_OBS)
ACTIONS = (Columns.ACTIONS, "prev_actions")


def to_json(batch: Any, compress_columns: Collection[str]) -> str:
    """A line.

    Args:
        batch: SampleBatch or MultiAgentBatch.
        compress_columns: names of columns that are packed; the others become lists of numbers, without their dtypes.
    """

    def columns_of(batch: Any) -> dict[str, Any]:
        return {name: pack(c) if name in compress_columns else _plain(c) for name, c in batch.items()}

    if isinstance(batch, MultiAgentBatch):
        by_policy = {plain_text(policy_id): columns_of(each) for policy_id, each in batch.policy_batches.items()}
        record = {"type": "MultiAgentBatch", "count": batch.count, "policy_batches": by_policy}
    else:
        record = {"type": "SampleBatch", **columns_of(batch)}
    return json.dumps(record)


def _plain(value: Any) -> Any:
    """A value of what JSON has; what it can't hold becomes its text."""
    if isinstance(value, dict):
        return {plain_text(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, np.ndarray):
        return _plain(value.tolist()) if value.dtype.kind not in "fiub" else value.tolist()
    if isinstance(value, np.generic):
        return _plain(value.item()) if not isinstance(value.item(), np.generic) else str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def from_json(line: str, spaces: Mapping[str, Spaces] | None = None) -> Any:
    """The batch of a line. What was packed has the dtypes it had; numbers in lists are int64, float64 or bool.

    Args:
        spaces: by policy id; tells which lists are tuples, of nested observations and actions.

    Returns:
        SampleBatch or MultiAgentBatch

    Raises:
        BatchError, ValueError: it isn't one.
    """
    record = json.loads(line)
    kind = record.pop("type", None) if isinstance(record, dict) else None
    if kind == "SampleBatch":
        of_one = next(iter(spaces.values())) if spaces else (None, None)
        return SampleBatch(_columns(record, of_one))
    if kind != "MultiAgentBatch":
        raise BatchError(f'expected the "type" SampleBatch or MultiAgentBatch, got {kind!r}')
    batches = {
        policy_id: SampleBatch(_columns(columns, (spaces or {}).get(policy_id, (None, None))))
        for policy_id, columns in record["policy_batches"].items()
    }
    return MultiAgentBatch(batches, record["count"])


def _columns(record: Mapping[str, Any], spaces: Spaces) -> dict[str, Any]:
    columns = {}
    for name, column in record.items():
        if is_packed(column):
            columns[name] = unpack(column)
        elif name == Columns.INFOS:
            columns[name] = column
        else:
            space = spaces[0] if name in OBSERVATIONS else spaces[1] if name in ACTIONS else None
            columns[name] = _arrays(column, space)
    if "dones" in columns:  # of versions of RLlib that had no others
        columns[Columns.TERMINATEDS] = columns.pop("dones")
    return columns


def _arrays(column: Any, space: gym.Space | None) -> Any:
    """Lists as arrays; those of a Tuple space as tuples of such."""
    if isinstance(column, dict):
        of_entry = space.spaces if isinstance(space, gym.spaces.Dict) else {}
        return {key: _arrays(entry, of_entry.get(key)) for key, entry in column.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_arrays(entry, of_entry) for entry, of_entry in zip(column, space.spaces, strict=True))
    return np.asarray(column)


def checksums_file(path: Path) -> Path:
    """The file with the checksums of the lines of `path`."""
    return path.with_name(f".{path.name}.crc32")


def checksum(line: bytes) -> bytes:
    """A line of that file for a line of the other."""
    return b"%08x\n" % zlib.crc32(line)


def checksums_of(path: Path) -> list[bytes]:
    """The checksums of the first lines of a file; none if it has no such file beside it."""
    file = checksums_file(path)
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []
