"""Save nested state to a directory and load it, without pickle."""

from fastmarl.core.checkpoint.folder import load_state, save_state

__all__ = [
    "load_state",
    "save_state",
]
