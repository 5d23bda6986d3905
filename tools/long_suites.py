"""Run the long suites one after another, each within a time limit, and write benchmarks/results/long.md.

    python tools/long_suites.py [SUITE...]

A suite that has passed on the committed code is not repeated, so an interrupted run continues where it stopped. Output
goes to build/long/SUITE.log. The exit status is 1 unless every suite has passed.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build/long"
STATE = LOGS / "state.json"
TABLE = ROOT / "benchmarks/results/long.md"
# A suite's result is valid until one of these changes.
CODE = ("fastmarl", "src_ext", "tests", "setup.py", "pyproject.toml", "constraints.txt", "Makefile")
SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.MULTILINE)


class Suite(NamedTuple):
    name: str
    make: tuple[str, ...]
    limit_min: int


class Result(NamedTuple):
    outcome: str  # "passed", "failed" or "timed out"
    tests: str
    minutes: float
    date: str
    commit: str


# The limits allow for another suite on the same two cores.
SUITES = (
    Suite("exhaustive", ("test-exhaustive",), 60),
    Suite("old-stack", ("test-old-stack",), 30),
    Suite("checked", ("test-checked",), 45),
    Suite("sanitized", ("test-sanitized",), 90),
    Suite("fuzz", ("fuzz",), 45),
    Suite("interrupts", ("test-interrupts",), 150),
    Suite("rays", ("test-rays",), 60),
    Suite("wheel", ("test-wheel",), 30),
    Suite("versions", ("test-versions",), 150),
    Suite("kills", ("test-kills",), 60),
    Suite("replay", ("test-replay",), 30),
    Suite("soak-in-process", ("soak", "SOAK_WAYS=in-process", "SECONDS=600"), 15),
    Suite("soak-workers", ("soak", "SOAK_WAYS=workers", "SECONDS=600"), 15),
)


def main(names: list[str]) -> int:
    if unknown := set(names) - {suite.name for suite in SUITES}:
        raise SystemExit(f"unknown suites {sorted(unknown)}; there are {[suite.name for suite in SUITES]}")
    if git("status", "--porcelain", "--", *CODE):
        raise SystemExit("commit first: the table names the commit whose code was tested")
    commit = git("log", "-1", "--format=%h", "--", *CODE)
    LOGS.mkdir(parents=True, exist_ok=True)
    results = load()
    for suite in SUITES:
        if (not names or suite.name in names) and not has_passed(results.get(suite.name), commit):
            print(f"{suite.name}: at most {suite.limit_min} min", flush=True)
            result = run(suite, commit)
            print(f"{suite.name}: {result.outcome}", flush=True)
            results = load() | {suite.name: result}  # another call may have run other suites in between
            STATE.write_text(json.dumps(results))
    TABLE.write_text(table(results))
    print(TABLE.read_text())
    return 0 if all(has_passed(results.get(suite.name), commit) for suite in SUITES) else 1


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def has_passed(result: Result | None, commit: str) -> bool:
    return result is not None and result.outcome == "passed" and result.commit == commit


def load() -> dict[str, Result]:
    """Return the last result of each suite, by name."""
    if not STATE.exists():
        return {}
    return {name: Result(*fields) for name, fields in json.loads(STATE.read_text()).items()}


def run(suite: Suite, commit: str) -> Result:
    log = LOGS / f"{suite.name}.log"
    started = time.monotonic()
    with log.open("w") as output:
        # In a session of its own, so that the time limit ends all processes that the suite started.
        command = ["make", *suite.make]
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        try:
            outcome = "failed" if process.wait(suite.limit_min * 60) else "passed"
        except subprocess.TimeoutExpired:
            outcome = "timed out"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    minutes = round((time.monotonic() - started) / 60, 1)
    return Result(outcome, counts(log.read_text(errors="replace")), minutes, datetime.date.today().isoformat(), commit)


def counts(log: str) -> str:
    """Return the counts of all pytest runs in a log, such as "838 passed, 2 skipped"; empty without any."""
    total: Counter[str] = Counter()
    for summary in SUMMARY.findall(log):
        for item in summary.split(", "):
            number, what = item.split()
            total[what] += int(number)
    return ", ".join(f"{number:,} {what}" for what, number in total.items() if what != "warnings")


def table(results: dict[str, Result]) -> str:
    lines = [
        "The last run of each long suite, by `make long`.",
        "",
        "| suite | command | result | tests | minutes | date | commit |",
        "|---|---|---|---|---:|---|---|",
    ]
    for suite in SUITES:
        result = results.get(suite.name, Result("not run", "", 0, "", ""))
        lines.append(f"| {suite.name} | `make {' '.join(suite.make)}` | {' | '.join(map(str, result))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
