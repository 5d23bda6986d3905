"""Run the core's quick tests on each Python, with the oldest and the newest packages that pyproject.toml allows.

    python tools/tested_versions.py 3.11 3.12 3.13 3.14

uv finds the interpreters, or downloads them, and resolves the packages. Each pair has an environment in build/versions.
The results go to benchmarks/results/versions.json, and as a table to docs/versions.md. The exit status is 1 if a test
failed.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "build/versions"
RESULTS = ROOT / "benchmarks/results/versions.json"
PAGE = ROOT / "docs/versions.md"
MARKS = "<!-- tested versions -->", "<!-- end of tested versions -->"
EXTRAS = ("pettingzoo", "openspiel", "viz", "stats", "tensorboard", "onnx", "io", "minari", "video")
SHOWN = ("numpy", "numba", "torch", "gymnasium", "pettingzoo")
# "Oldest" is the oldest version of each package with a wheel for that Python.
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
TESTS = [f"tests/{folder}" for folder in ("core", "envs", "learning", "offline", "replays", "testing", "cli")]


def main(pythons: list[str]) -> int:
    failed = False
    for python in pythons:
        for packages in ("newest", "oldest"):  # built with the newest NumPy, whose ABI older ones have
            interpreter = environment(python, packages)
            if packages == "newest":
                build(interpreter)
            row = {"python": python, "packages": packages, **versions(interpreter), **test(interpreter)}
            failed |= row["failed"] > 0
            rows = [other for other in load() if (other["python"], other["packages"]) != (python, packages)]
            RESULTS.write_text(json.dumps(sorted([*rows, row], key=order), indent=1) + "\n")
            PAGE.write_text(with_table(PAGE.read_text(), load()))
            print(table([row]), flush=True)
    return int(failed)


def environment(python: str, packages: str) -> Path:
    """Return the interpreter of a new virtual environment with the package's dependencies and what its tests need."""
    folder = ENVIRONMENTS / f"{python}-{packages}"
    interpreter = folder / "bin/python"
    install = ("pip", "install", "--python", interpreter, "--only-binary", ":all:", "--no-binary", "rlcard")
    versions = ROOT / "tests/versions"
    uv("venv", "--clear", "--python", python, folder)
    extras = [argument for extra in EXTRAS for argument in ("--extra", extra)]
    resolution = ("--resolution", RESOLUTIONS[packages])
    uv(*install, *resolution, "--override", versions / "overrides.txt", "-r", ROOT / "pyproject.toml", *extras)
    constraints = folder / "constraints.txt"
    constraints.write_text(uv("pip", "freeze", "--python", interpreter))
    uv(*install, "--constraint", constraints, "-r", versions / "requirements.txt")
    return interpreter


def uv(*arguments: str | Path) -> str:
    command = [Path(sys.executable).with_name("uv"), "--quiet", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def build(interpreter: Path) -> None:
    command = [interpreter, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "FASTMARL_CHECKED": "0"}, check=True)


def versions(interpreter: Path) -> dict[str, str]:
    listed = json.loads(uv("pip", "list", "--format", "json", "--python", interpreter))
    return {package["name"]: package["version"].partition("+")[0] for package in listed if package["name"] in SHOWN}


def test(interpreter: Path) -> dict[str, int | str]:
    """Run the tests and return their counts with date and commit; an error of pytest counts as a failure."""
    report = interpreter.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    options = ("-q", "-m", "not slow", "--numprocesses", "3", "--dist", "loadgroup", "--junit-xml", report)
    command = [interpreter, "-m", "pytest", *options, *TESTS]
    # Numba may read what another version has cached when several processes compile at once.
    cache = interpreter.parents[1] / "numba"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(cache)}
    environ.pop("CI", None)  # there, tests of packages that are missing fail
    status = subprocess.run(command, cwd=ROOT, env=environ).returncode
    suite = ElementTree.parse(report).find("testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"] or int(status != 0)
    return {
        "passed": counts["tests"] - failed - counts["skipped"],
        "failed": failed,
        "skipped": counts["skipped"],
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
    }


def load() -> list[dict]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else []


def order(row: dict) -> tuple:
    return [int(part) for part in row["python"].split(".")], row["packages"] == "newest"


def table(rows: list[dict]) -> str:
    lines = [
        "| CPython | packages | NumPy | numba | PyTorch | Gymnasium | PettingZoo | passed | failed | skipped |",
        "|---|---|---|---|---|---|---|---:|---:|---:|",
    ]
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("passed", "failed", "skipped")]
        cells = [row["python"], row["packages"], *(row[name] for name in SHOWN), *counts]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str, rows: list[dict]) -> str:
    """Return a page with the table in the place of the one between its marks."""
    start, end = MARKS
    changed, count = re.subn(f"{start}.*{end}", lambda _: f"{start}\n\n{table(rows)}\n\n{end}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the page must have {start} and {end} once")
    return changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
