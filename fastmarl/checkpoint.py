"""Nested state to and from a folder, without pickle."""

from fastmarl.core.checkpoint import load_state, save_state

__all__ = [
    "load_state",
    "save_state",
]
