"""Transfers batches between processes in memory files, one file per batch.

The sampler copies the arrays of a batch into the file and never touches it again; the arrays of the learner are views
of the file. The system frees it with the last of these arrays, or with the last process that has it open.
"""

import mmap
import os
import pickle
from typing import Any, cast

from fastmarl.core.episodes.sources import joined
from fastmarl.core.errors import BatchError
from fastmarl.core.vector.workers.shm import LINE

Places = list[tuple[int, int]]  # (begin, end) of each piece in bytes; the first is a pickle of everything but arrays


def pack(batch: Any) -> tuple[int, Places]:
    """Write a batch to a new memory file and return its descriptor and the positions of the pieces.

    Arrays of numbers are copied once, unchanged; the rest of the batch is pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    pieces = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    places, begin = [], 0
    for piece in pieces:
        places.append((begin, begin + len(piece)))
        begin = -(-(begin + len(piece)) // LINE) * LINE
    fd = os.memfd_create("fastmarl-batch")
    try:
        os.ftruncate(fd, begin)
        for piece, (at, _) in zip(pieces, places, strict=True):
            while piece:  # the system writes at most 2 GiB at once
                n = os.pwrite(fd, piece, at)
                piece, at = piece[n:], at + n
    except BaseException:
        os.close(fd)
        raise
    return fd, places


def unpack(fd: int, places: Places) -> Any:
    """Read a batch, whose arrays are writeable views of the file, and close the descriptor."""
    try:
        memory = mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    finally:
        os.close(fd)
    head, *pieces = [memoryview(memory)[begin:end] for begin, end in places]
    return pickle.loads(head, buffers=pieces)


def join_batches(batches: list[Any]) -> Any:
    """Join the batches of several processes by concatenating arrays along their first axis.

    Args:
        batches: Nested dicts and tuples of arrays, at least one. Dicts keyed by module id, as returned by `columns()`,
            may omit some modules.

    Returns:
        The joined batch.

    Raises:
        BatchError: If the batches have different columns.
    """
    if len(batches) == 1:
        return batches[0]
    if not all(isinstance(part, dict) for batch in batches for part in cast(dict, batch).values()):
        return _joined(batches)
    module_ids = dict.fromkeys(module_id for batch in batches for module_id in batch)
    return {module_id: _joined([b[module_id] for b in batches if module_id in b]) for module_id in module_ids}


def _joined(parts: list[Any]) -> Any:
    for part in parts:
        if _names(part) != _names(parts[0]):
            raise BatchError(f"processes returned batches with different columns, {list(parts[0])} and {list(part)}; "
                             f"pass a join function that supports them")  # fmt: skip
    return joined(parts)


def _names(part: Any) -> Any:
    """Return the nested keys of a dict, with None in place of values."""
    return {key: _names(inner) for key, inner in part.items()} if isinstance(part, dict) else None
