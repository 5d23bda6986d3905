"""What an error in a module's forward pass is told with."""

from __future__ import annotations

from typing import Any

from fastmarl.columns import Columns
from fastmarl.errors import ConfigError
from fastmarl.spaces import flatten_struct

MOST_LEAVES = 16


def describe_failure(
    error: Exception, module_id: str, batch: dict[str, Any], *, explore: bool, has_memory: bool
) -> None:
    """Add a note to the error: which module, in which phase, with a batch of which shapes.

    Raises:
        ConfigError: the module has asked for a recurrent state and has none.
    """
    method = "forward_exploration" if explore else "forward_inference"
    if not has_memory and isinstance(error, KeyError) and error.args == (Columns.STATE_IN,):
        raise ConfigError(
            f"module {module_id!r} reads batch['state_in'] in {method}(), but has no memory: give it a method "
            "get_initial_state() that returns a dict of arrays or tensors without a batch axis; its outputs then have "
            "the new state as 'state_out', and observations come as [B, T, ...]"
        ) from error
    error.add_note(f"in {method}() of module {module_id!r}, with a batch of {_shapes(batch)}")


def _shapes(batch: dict[str, Any]) -> str:
    leaves = flatten_struct(batch)
    texts = [f"{_name(path)} {_shape(leaf)}" for path, leaf in leaves[:MOST_LEAVES]]
    return ", ".join(texts) + (f" and {len(leaves) - MOST_LEAVES} more" if len(leaves) > MOST_LEAVES else "")


def _name(path: tuple) -> str:
    first, *others = path
    return first + "".join(f"[{key!r}]" for key in others)


def _shape(leaf: Any) -> str:
    shape = getattr(leaf, "shape", None)
    return type(leaf).__name__ if shape is None else f"{list(shape)} of {str(leaf.dtype).removeprefix('torch.')}"
