"""Inference options, shared by all modules of a runner."""

from dataclasses import dataclass
from typing import Any

import torch

from fastmarl.core.connectors.module_connectors import ModuleConnectors
from fastmarl.core.nets.compiled import CAPTURING_MODES
from fastmarl.core.nets.graphs import TickGraphs
from fastmarl.core.nets.row_threads import ALONE, RowThreads


@dataclass(frozen=True, kw_only=True)
class InferenceOptions:
    """Options for running modules.

    Args:
        native: True if compiled code may replace torch, see native.py.
        dtype: "float32", or "bfloat16" for the operations that torch.autocast computes in bfloat16.
        compile: Arguments of `torch.compile`; None for no compilation.
        threads: Threads for compiled forward passes of many rows.
        graphs: Launcher for capturable modules; None calls each module separately.
    """

    native: bool = True
    dtype: str = "float32"
    compile: dict[str, Any] | None = None
    threads: RowThreads = ALONE
    graphs: TickGraphs | None = None


def why_never_captured(connectors: ModuleConnectors, has_objects: bool, options: InferenceOptions) -> str:
    """Return the reason why a module cannot be captured in CUDA graphs, or ""."""
    if has_objects:
        return "some of its observations are not arrays"
    if connectors.adds_columns or connectors.outputs:
        return "its connectors add columns, or change its outputs"
    if options.compile is not None and options.compile.get("mode") in CAPTURING_MODES:
        return f"torch.compile captures it itself, with mode {options.compile['mode']!r}"
    return ""


def make_autocast(device: torch.device, dtype: str) -> torch.autocast | None:
    """Return an autocast context for this dtype, or None for float32."""
    if dtype == "float32":
        return None
    # Without a cache, so that a captured forward pass converts the current weights at each replay.
    return torch.autocast(device.type, dtype=getattr(torch, dtype), cache_enabled=False)
