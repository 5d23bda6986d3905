"""Files of figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastmarl.cli.info import versions


def save(path: Path | None, figures: dict[str, Any]) -> None:
    """Write them as JSON, with the versions of everything, if there is a path."""
    if path is not None:
        path.write_text(json.dumps({"versions": versions(), **figures}, indent=1) + "\n")
