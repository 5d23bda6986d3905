"""Adds context to errors raised in the forward pass of a module."""

from typing import Any

from fastmarl.core.errors import ConfigError
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import flatten_struct

MOST_LEAVES = 16
WAY_OUT = (
    "add a method get_initial_state() that returns a dict of arrays or tensors without a batch axis; the module must "
    "then output the new state as 'state_out', and its observations are [B, T, ...]"
)


def describe_failure(
    error: BaseException, module_id: str, batch: dict[str, Any], *, explore: bool, has_memory: bool
) -> None:
    """Raise a clearer error if possible; otherwise add notes to `error`, as in `note_failure()`.

    Raises:
        ConfigError: If the module reads a recurrent state but has no initial state.
    """
    if _wants_memory(error, has_memory):
        raise ConfigError(
            f"module {module_id!r} reads batch['state_in'] in {_method(explore)} but has no initial state: {WAY_OUT}"
        ) from error
    note_failure(error, module_id, batch, explore=explore, has_memory=has_memory)


def note_failure(
    error: BaseException, module_id: str, batch: dict[str, Any], *, explore: bool, has_memory: bool
) -> None:
    """Add a note to the error with the module, the method and the shapes of the batch.

    If the module reads a recurrent state but has no initial state, a second note explains the fix.
    """
    error.add_note(f"in {_method(explore)} of module {module_id!r}, with a batch of {_shapes(batch)}")
    if _wants_memory(error, has_memory):
        error.add_note(f"it has no initial state: {WAY_OUT}")


def _wants_memory(error: BaseException, has_memory: bool) -> bool:
    return not has_memory and isinstance(error, KeyError) and error.args == (Columns.STATE_IN,)


def _method(explore: bool) -> str:
    return "forward_exploration()" if explore else "forward_inference()"


def _shapes(batch: dict[str, Any]) -> str:
    leaves = flatten_struct(batch)
    texts = [f"{_name(path)} {_shape(leaf)}" for path, leaf in leaves[:MOST_LEAVES]]
    return ", ".join(texts) + (f" and {len(leaves) - MOST_LEAVES} more" if len(leaves) > MOST_LEAVES else "")


def _name(path: tuple) -> str:
    first, *others = path
    return str(first) + "".join(f"[{key!r}]" for key in others)


def _shape(leaf: Any) -> str:
    shape = getattr(leaf, "shape", None)
    return type(leaf).__name__ if shape is None else f"{list(shape)} of {str(leaf.dtype).removeprefix('torch.')}"
