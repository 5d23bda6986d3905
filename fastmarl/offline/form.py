"""The form of a file, which describes how nested arrays are converted to Arrow columns and back."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from fastmarl.core.errors import OfflineError
from fastmarl.core.native import _steps
from fastmarl.core.spaces.columns import Columns, OwnName, Recorded
from fastmarl.core.spaces.structs import flatten_struct, map_struct
from fastmarl.offline.arrow import load
from fastmarl.offline.json_values import LeafIndex, from_json, plain_text, to_json

T, ENV_T, CHUNK, MODULE_ID = "t", "env_t", "chunk", "module_id"
FINAL_ENV_T, FINAL_INFOS = "final_env_t", "final_infos"
IDS = (Columns.EPS_ID, Columns.AGENT_ID, MODULE_ID)
RESERVED = (
    *IDS, CHUNK, T, ENV_T, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.INFOS, FINAL_ENV_T,
    FINAL_INFOS,
)  # fmt: skip
NUMBERS = {np.dtype(name) for name in ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")}
FORM = b"fastmarl.form"  # key in the file metadata


class LeafColumn(NamedTuple):
    """A leaf of a nested column: an array [rows, *shape]."""

    name: str
    dtype: str  # as in NumPy `dtype.str`; "|O" columns hold JSON strings, lists if a row has several objects
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def arrow_type(self) -> Any:
        """Return the Arrow type, or None for zero-size items, which need no column."""
        pa = load()
        if self.dtype == "|O":
            return pa.string()
        number = pa.from_numpy_dtype(np.dtype(self.dtype).newbyteorder("="))
        if not self.shape:
            return number
        # Nullable values take longer to write, as the level of each value needs more bits.
        return pa.list_(pa.field("element", number, nullable=False), self.size) if self.size else None

    def to_arrow(self, leaf: np.ndarray, is_there: np.ndarray | None = None) -> Any:
        """Convert an array [rows, *shape] to Arrow, with nulls where `is_there` is False."""
        if self.dtype == "|O":
            rows = leaf.reshape(len(leaf), self.size).tolist() if self.shape else leaf.tolist()
            texts = [to_json(row, f"an item of the column {self.name!r}") for row in rows]
            return load().array(texts, load().string(), mask=None if is_there is None else ~is_there)
        if not self.shape:
            return numbers(leaf, is_there)
        flat = numbers(np.ascontiguousarray(leaf).reshape(-1))
        return load().Array.from_buffers(self.arrow_type(), len(leaf), [_bits(is_there)], children=[flat])

    def to_numpy(self, column: Any) -> np.ndarray:
        """Convert an Arrow array without nulls to NumPy: [rows, *shape]."""
        if self.dtype == "|O":
            rows = list(map(from_json, column.to_pylist()))
            items = chain.from_iterable(rows) if self.shape else rows
            return np.fromiter(items, object, len(rows) * self.size).reshape(len(rows), *self.shape)
        values = column.flatten() if self.shape else column
        array = values.to_numpy(zero_copy_only=False)
        return array.reshape(len(column), *self.shape).astype(self.dtype, copy=False)


@dataclass(frozen=True)
class TableForm:
    """Names, types and nesting of the columns of a file. Equal forms have the same `text`.

    Args:
        text: JSON of {"obs": ..., "actions": ..., "outputs": [[name, ...], ...], "leaves": [[name, dtype, shape],
            ...]}, with a `LeafIndex` in place of each array.
    """

    text: str

    @classmethod
    def of(cls, obs: Any, actions: Any, outputs: Iterable[tuple[OwnName, Any]]) -> "TableForm":
        """Create the form of columns that have the same number of rows.

        Raises:
            OfflineError: If a column cannot be written to Parquet.
        """
        leaves: list[LeafColumn] = []
        taken = set(RESERVED)

        def structure(name: str, struct: Any) -> Any:
            names = iter([".".join([name, *map(_text, path)]) for path, _ in flatten_struct(struct)])
            return map_struct(lambda leaf: note(next(names), leaf), struct)

        def note(name: str, leaf: np.ndarray) -> LeafIndex:
            if leaf.dtype != object and leaf.dtype.newbyteorder("=") not in NUMBERS:
                raise OfflineError(f"column {name!r} has dtype {leaf.dtype}, which Parquet does not support; exclude "
                                   f"it with `columns`, or return another dtype from the module")  # fmt: skip
            name = _free(name, taken)
            taken.add(name)
            leaves.append(LeafColumn(name, leaf.dtype.str, leaf.shape[1:]))
            return LeafIndex(len(leaves) - 1)

        form = {
            "obs": structure(Columns.OBS, obs),
            "actions": structure(Columns.ACTIONS, actions),
            "outputs": [[name, structure(_text(name), column)] for name, column in outputs],
            "leaves": leaves,
        }
        form["leaves"] = [[leaf.name, leaf.dtype, list(leaf.shape)] for leaf in leaves]
        return cls(to_json(form, "the form of a file"))

    @cached_property
    def _parts(self) -> dict[str, Any]:
        return from_json(self.text)

    @cached_property
    def leaves(self) -> list[LeafColumn]:
        return [LeafColumn(name, dtype, tuple(shape)) for name, dtype, shape in self._parts["leaves"]]

    @property
    def obs(self) -> Any:
        """Nested `LeafIndex` objects of observations, like `actions` and `outputs`."""
        return self._parts["obs"]

    @property
    def actions(self) -> Any:
        return self._parts["actions"]

    @cached_property
    def outputs(self) -> dict[OwnName, Any]:
        return dict(self._parts["outputs"])

    @cached_property
    def obs_leaves(self) -> list[LeafColumn]:
        return self.leaves[: len(flatten_leaves(self.obs))]

    def of_obs(self, name: str) -> Iterator[LeafColumn]:
        """Return the columns of other observations, such as "new_obs"."""
        return (leaf._replace(name=name + leaf.name.removeprefix(Columns.OBS)) for leaf in self.obs_leaves)

    def schema(self, *, next_obs: bool) -> Any:
        """Return the schema of a file; only columns missing in some rows are nullable."""
        pa = load()
        text = pa.dictionary(pa.int32(), pa.string())
        of_all = [
            *((name, text) for name in IDS), (CHUNK, pa.int32()), (T, pa.int64()), (ENV_T, pa.int64()),
            *((leaf.name, leaf.arrow_type()) for leaf in self.leaves), (Columns.REWARDS, pa.float64()),
        ]  # fmt: skip
        of_some = [
            (Columns.TERMINATEDS, pa.bool_()), (Columns.TRUNCATEDS, pa.bool_()), (Columns.INFOS, pa.string()),
            (FINAL_ENV_T, pa.int64()), (FINAL_INFOS, pa.string()),
            *((leaf.name, leaf.arrow_type()) for leaf in self.of_obs(Columns.FINAL_OBS)),
        ]  # fmt: skip
        if next_obs:
            of_some += [(leaf.name, leaf.arrow_type()) for leaf in self.of_obs(Columns.NEXT_OBS)]
        fields = [pa.field(name, kind, nullable=False) for name, kind in of_all if kind is not None]
        fields += [pa.field(name, kind) for name, kind in of_some if kind is not None]
        return pa.schema(fields, {FORM: self.text.encode()})


def numbers(array: np.ndarray, is_there: np.ndarray | None = None) -> Any:
    """Convert an array [n] to Arrow, with nulls where `is_there` is False, sharing memory if possible.

    `pyarrow.array()` would release the GIL, and reacquiring it takes longer than the conversion; see native._steps.
    """
    pa = load()
    if array.dtype == bool:
        kind, data = pa.bool_(), _bits(array)
    else:
        native = array.dtype.newbyteorder("=")
        kind, data = pa.from_numpy_dtype(native), pa.py_buffer(np.ascontiguousarray(array, native))
    return pa.Array.from_buffers(kind, len(array), [_bits(is_there), data])


def without_texts(n: int) -> Any:
    """Return `n` null strings, like `pyarrow.nulls()` but without releasing the GIL; see `numbers()`."""
    pa = load()
    no_bits, no_ends = bytes(-(-n // 8)), bytes(4 * (n + 1))
    return pa.Array.from_buffers(pa.string(), n, [pa.py_buffer(each) for each in (no_bits, no_ends, b"")])


def _bits(flags: np.ndarray | None) -> Any:
    """Pack flags [n] into a buffer of bits."""
    return None if flags is None else load().py_buffer(_steps.packed(np.ascontiguousarray(flags)))


def flatten_leaves(struct: Any) -> list[LeafIndex]:
    """Return the `LeafIndex` objects of a nested value, in order."""
    if isinstance(struct, LeafIndex):
        return [struct]
    entries = struct.values() if isinstance(struct, dict) else struct
    return [leaf for entry in entries for leaf in flatten_leaves(entry)]


def nest(struct: Any, arrays: list[np.ndarray]) -> Any:
    """Replace the `LeafIndex` objects of a form with arrays."""
    if isinstance(struct, LeafIndex):
        return arrays[struct.number]
    if isinstance(struct, dict):
        return {key: nest(entry, arrays) for key, entry in struct.items()}
    return tuple(nest(entry, arrays) for entry in struct)


def _text(key: Any) -> str:
    return plain_text(key.value if isinstance(key, Recorded) else key)


def _free(name: str, taken: set[str]) -> str:
    """Return an unused column name, longer than `name` if needed, so that outputs never hide plain columns."""
    name = name.encode("utf-8", "replace").decode()
    is_plain = name in taken or name.partition(".")[0] in (Columns.FINAL_OBS, Columns.NEXT_OBS)
    found, n = f"outputs.{name}" if is_plain else name, 2
    while found in taken:
        found, n = f"outputs.{name}.{n}", n + 1
    return found
