"""The project's page on a package index: README.md with links that work there, and the project's addresses.

FASTMARL_REPOSITORY_URL sets the repository's address, such as https://host/owner/fastmarl; the default is the git
remote "origin" if that is on the web. Without either, links stay relative and no addresses are given.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
BRANCH = "main"
OF_THE_SITE = "../../"  # from README.md in blob/main/ to the repository's other pages, such as actions/
LINK = re.compile(r"(!?)\[((?:[^\[\]]|!?\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")
IS_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
CODE = re.compile(r"(^```.*?^```\s*$|`[^`\n]*\]\([^`\n]*`)", re.DOTALL | re.MULTILINE)  # may look like a link


def repository_url() -> str | None:
    """Return the repository's address without a trailing slash, or None if it is unknown."""
    url = os.environ.get("FASTMARL_REPOSITORY_URL") or _web_address(_origin())
    return url.rstrip("/").removesuffix(".git") if url else None


def _origin() -> str:
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no clone, as in a source distribution
        return ""


def _web_address(origin: str) -> str | None:
    """Return the web address of a remote such as git@host:owner/name.git; None for a folder."""
    if ssh := re.fullmatch(r"(?:ssh://)?git@([^:/]+)[:/](.+)", origin):
        return "https://{}/{}".format(*ssh.groups())
    return origin if origin.startswith("https://") else None


def project_urls(url: str | None) -> dict[str, str]:
    """Return name -> address, for the package's metadata."""
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
    """Make relative links and pictures in Markdown point to the repository; code and links within the page stay."""
    if url is None:
        return text
    return "".join(part if i % 2 else _absolute(part, url) for i, part in enumerate(CODE.split(text)))


def _absolute(text: str, url: str) -> str:
    def replaced(match: re.Match) -> str:
        bang, shown, target = match.groups()
        shown = _absolute(shown, url)  # a picture that is a link
        if target.startswith(OF_THE_SITE):
            target = f"{url}/{target.removeprefix(OF_THE_SITE)}"
        elif not (target.startswith("#") or IS_ABSOLUTE.match(target)):
            target = f"{url}/{'raw' if bang else 'blob'}/{BRANCH}/{target.removeprefix('./')}"
        return f"{bang}[{shown}]({target})"

    return LINK.sub(replaced, text)
