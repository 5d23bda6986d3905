"""Check rules of CONTRIBUTING.md that linters don't know: the lengths of files and of commit subjects."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("fastmarl", "benchmarks", "examples", "src_ext", "tools")
MOST_LINES = 400
MOST_CHARACTERS = 72
N_COMMITS = 50  # only the newest; older commits stay as they are


def main() -> int:
    """Print all violations; returns the exit code."""
    problems = [*long_files(), *long_subjects()]
    print(*problems, sep="\n", end="\n" * bool(problems))
    return int(bool(problems))


def long_files() -> list[str]:
    paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py*") if path.suffix in (".py", ".pyx")]
    lengths = {path: len(path.read_text().splitlines()) for path in sorted(paths)}
    return [
        f"{path.relative_to(ROOT)} has {n} lines, {MOST_LINES} at most: it holds more than one thing"
        for path, n in lengths.items()
        if n > MOST_LINES
    ]


def long_subjects() -> list[str]:
    command = ["git", "log", f"--max-count={N_COMMITS}", "--no-merges", "--format=%h %s"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commits = [line.split(" ", 1) for line in log.splitlines()]
    return [
        f"the subject of commit {commit} has {len(subject)} characters, {MOST_CHARACTERS} at most: {subject}"
        for commit, subject in commits
        if len(subject) > MOST_CHARACTERS
    ]


if __name__ == "__main__":
    sys.exit(main())
