"""What a package index shows of the project: README.md with links that work there, and the project's addresses.

The repository's address is known to whoever publishes it: FASTMARL_REPOSITORY_URL says it, such as
https://host/owner/fastmarl, or else the git remote "origin" if that is on the web. Without one, links stay relative
and no addresses are given.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
BRANCH = "main"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")
IS_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
CODE = re.compile(r"(^```.*?^```\s*$|`[^`\n]*\]\([^`\n]*`)", re.DOTALL | re.MULTILINE)  # that might look like a link


def repository_url() -> str | None:
    """Without a slash at the end; None: unknown."""
    url = os.environ.get("FASTMARL_REPOSITORY_URL") or _web_address(_origin())
    return url.rstrip("/").removesuffix(".git") if url else None


def _origin() -> str:
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no clone, as in a source distribution
        return ""


def _web_address(origin: str) -> str | None:
    """Of a remote such as git@host:owner/name.git; None for a folder."""
    if ssh := re.fullmatch(r"(?:ssh://)?git@([^:/]+)[:/](.+)", origin):
        return "https://{}/{}".format(*ssh.groups())
    return origin if origin.startswith("https://") else None


def project_urls(url: str | None) -> dict[str, str]:
    """Name -> address, for the package's metadata."""
    if url is None:
        return {}
    pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    return {
        "Homepage": url,
        "Repository": url,
        "Issues": f"{url}/issues",
        **{name: f"{url}/blob/{BRANCH}/{path}" for name, path in pages.items()},
    }


def absolute_links(text: str, url: str | None) -> str:
    """Markdown in which relative links and pictures lead to the repository; code and links within the page stay."""
    if url is None:
        return text
    return "".join(part if i % 2 else _absolute(part, url) for i, part in enumerate(CODE.split(text)))


def _absolute(text: str, url: str) -> str:
    def replaced(match: re.Match) -> str:
        bang, shown, target = match.groups()
        shown = _absolute(shown, url)  # a picture that is a link
        if not (target.startswith("#") or IS_ABSOLUTE.match(target)):
            target = f"{url}/{'raw' if bang else 'blob'}/{BRANCH}/{target.removeprefix('./')}"
        return f"{bang}[{shown}]({target})"

    return LINK.sub(replaced, text)
