"""Hooks of the documentation's build: the version and the repository's address, which mkdocs.yml can't know."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from index_page import BRANCH, ROOT, repository_url


def on_config(config: Any) -> None:
    """Show the version in the title, and link pages to their source if the repository is on the web."""
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    config.site_name = f"fastmarl {version[1]}"
    if url := repository_url():
        config.repo_url, config.edit_uri = url, f"edit/{BRANCH}/docs/"
