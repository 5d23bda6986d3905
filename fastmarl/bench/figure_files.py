"""Files of measured figures, to which a benchmark can come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastmarl.errors import ConfigError


def read_figures(path: Path | None, key: str) -> Any:
    """What a benchmark has written under `key`; None if there is no file yet.

    Raises:
        ConfigError: it is something else.
    """
    if path is None or not path.exists():
        return None
    try:
        return json.loads(path.read_text())[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--json {path}: not written by this benchmark: {error!r}") from error
