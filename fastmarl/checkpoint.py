"""Saving nested state to a folder, and loading it, without pickle."""

from fastmarl.core.checkpoint.folder import load_state, save_state

__all__ = [
    "load_state",
    "save_state",
]
