"""Print a release's section of the changelog, with its tag as argument.

Fails unless the tag is pyproject.toml's version and the section has a date.
"""

from __future__ import annotations

import re
import sys
import tomllib

from index_page import CODE, ROOT, absolute_links, repository_url

# A line that continues the paragraph or list item before it: GitHub shows each line break of a release's notes.
CONTINUED = re.compile(r"(?<=\S)\n *(?=[^\s|#>*-])")


def main(tag: str) -> None:
    """Print the notes of the release with this tag."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, but pyproject.toml has version {version}: expected the tag v{version}")
    print(absolute_links(notes((ROOT / "CHANGELOG.md").read_text(), version), repository_url()))


def notes(changelog: str, version: str) -> str:
    """Return the section of a version, with one line per paragraph or list item."""
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n"
    section = re.search(rf"{heading}(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    if section is None or not section[1].strip():
        raise SystemExit(f"CHANGELOG.md has no section with a heading such as '## {version} (2026-01-31)'")
    parts = CODE.split(section[1].strip())
    return "".join(part if i % 2 else CONTINUED.sub(" ", part) for i, part in enumerate(parts))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
