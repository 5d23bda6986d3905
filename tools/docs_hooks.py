"""Hooks of the documentation's build: the version, the repository's address, and links to files outside the pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from index_page import BRANCH, ROOT, repository_url

OUTSIDE = re.compile(r"\[([^\[\]]+)\]\((?:\.\./)+(benchmarks/[^)\s]+)\)")


def on_config(config: Any) -> None:
    """Show the version in the title, and link pages to their source if the repository is on the web."""
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    config.site_name = f"fastmarl {version[1]}"
    if url := repository_url():
        config.repo_url, config.edit_uri = url, f"edit/{BRANCH}/docs/"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link files outside the pages in the repository, or name them if its address is unknown."""
    url = repository_url()
    return OUTSIDE.sub(rf"[\1]({url}/blob/{BRANCH}/\2)" if url else r"\1 (`\2`)", markdown)
