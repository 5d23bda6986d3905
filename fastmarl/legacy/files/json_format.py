"""Batches as JSON lines, in the format of the old RLlib API stack, readable by its JsonReader.

The format has no place for line checksums, so they are stored in a hidden file next to the JSON file. JSON files
without checksums, such as those written by RLlib, are read unchecked.
"""

import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from fastmarl.core.errors import BatchError
from fastmarl.core.spaces.columns import Columns
from fastmarl.legacy.batches.packing import is_packed, pack, unpack
from fastmarl.legacy.batches.sample_batch import MultiAgentBatch, SampleBatch
from fastmarl.offline.json_values import plain_text

Spaces = tuple[gym.Space | None, gym.Space | None]  # observation space, action space
OBSERVATIONS = (Columns.OBS, Columns.NEXT_OBS)
ACTIONS = (Columns.ACTIONS, "prev_actions")


def to_json(batch: Any, compress_columns: Collection[str]) -> str:
    """Return a batch as a JSON line.

    Args:
        batch: SampleBatch or MultiAgentBatch.
        compress_columns: Names of the columns to pack; the others become lists of numbers, losing their dtypes.
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
    """Convert a value to JSON types; objects that JSON cannot represent become strings."""
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
    """Parse a line. Packed columns keep their dtypes; numbers in lists become int64, float64 or bool.

    Args:
        spaces: Policy id -> (observation space, action space); lists become tuples where the space is a Tuple.

    Returns:
        The SampleBatch or MultiAgentBatch.

    Raises:
        BatchError, ValueError: If the line contains no batch.
    """
    return from_record(json.loads(line), spaces)


def from_record(record: Any, spaces: Mapping[str, Spaces] | None = None) -> Any:
    """Return the batch in a parsed line or in a dataset row; see `from_json()`."""
    kind = record.get("type") if isinstance(record, dict) else None
    if kind == "SampleBatch":
        of_one = next(iter(spaces.values())) if spaces else (None, None)
        return SampleBatch(_columns({name: column for name, column in record.items() if name != "type"}, of_one))
    if kind != "MultiAgentBatch":
        raise BatchError(f'"type" must be SampleBatch or MultiAgentBatch, got {kind!r}')
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
    if "dones" in columns:  # written by old versions of RLlib, without "terminateds"
        columns[Columns.TERMINATEDS] = columns.pop("dones")
    return columns


def _arrays(column: Any, space: gym.Space | None) -> Any:
    """Convert lists to arrays, or to tuples of arrays where the space is a Tuple."""
    if isinstance(column, dict):
        of_entry = space.spaces if isinstance(space, gym.spaces.Dict) else {}
        return {key: _arrays(entry, of_entry.get(key)) for key, entry in column.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_arrays(entry, of_entry) for entry, of_entry in zip(column, space.spaces, strict=True))
    return np.asarray(column)


def checksums_file(path: Path) -> Path:
    """Return the path of the file with the checksums of the lines in `path`."""
    return path.with_name(f".{path.name}.crc32")


def checksum(line: bytes) -> bytes:
    """Return the entry of a JSON line in the checksums file."""
    return b"%08x\n" % zlib.crc32(line)


def checksums_of(path: Path) -> list[bytes]:
    """Return the checksums of the lines in `path`, in order, or an empty list if there is no checksums file."""
    file = checksums_file(path)
    return file.read_bytes().splitlines(keepends=True) if file.exists() else []
