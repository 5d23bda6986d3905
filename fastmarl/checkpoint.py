"""Nested state to and from a folder, without pickle."""

from fastmarl.core.checkpoint import load_state as load_state
from fastmarl.core.checkpoint import save_state as save_state
