"""Put slips into the code, one at a time, and see whether the tests that stand beside each one notice it.

    python tools/mutants.py [--jobs N] [NAME...]     # `make mutants`; a NAME is part of a slip's name or file

tools/slips.toml lists the slips: what stands in a file once, what a tired author might have written instead, and the
tests to run. All slips of native code lie in one build in build/mutants, where an environment variable chooses one; a
slip of Python code is put in while its module is imported, so no file changes. Each slip runs in a process of its own,
forked from one that has loaded torch; processes that its tests start see native slips only.

A slip is caught "fast" if a test of `make test-fast` fails, "slow" if only another one of `make test` does. The exit
status is 1 if a slip survives that is not explained as `equivalent`, and 2 if a slip cannot be put in or run.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREE = ROOT / "build/mutants"
RESULTS = ROOT / "build/mutants.json"
LIMIT_S = 600
FAST = "not slow and not needs and not exhaustive"
SLOW = "(slow or needs) and not exhaustive"
SUITE = "not exhaustive"
OUTCOMES = ("fast", "slow", "survived", "equivalent", "broken")
# One function for Cython and C: the number of the slip that is on, read once in each extension.
CHOSEN = """
#ifndef FASTMARL_SLIP
#define FASTMARL_SLIP fastmarl_slip()
#include <stdlib.h>
static int fastmarl_slip(void) {
    static int slip = -1;
    if (slip < 0) { const char *text = getenv("FASTMARL_SLIP"); slip = text ? atoi(text) : 0; }
    return slip;
}
#endif
"""


@dataclass(frozen=True)
class Slip:
    number: int
    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @property
    def is_native(self) -> bool:
        return self.file.startswith("src_ext/")

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def put_into(self, source: str) -> str:
        """Return the source with the slip in it: for good in Python, as a choice at run time in native code."""
        if source.count(self.before) != 1:
            raise SystemExit(f"{self.name}: {source.count(self.before)} places in {self.file} read {self.before!r}")
        after = self._choice(source) if self.is_native else self.after
        return source.replace(self.before, after)

    def _choice(self, source: str) -> str:
        line_start = source.rindex("\n", 0, source.index(self.before)) + 1
        end = source.index(self.before) + len(self.before)
        is_lines = not source[line_start : source.index(self.before)].strip() and source[end : end + 1] in "\n"
        is_c = self.file.endswith(".h")
        header = re.fullmatch(r"(if|elif|while) (.*):", self.before)
        if is_c and self.before.rstrip().endswith((";", "}")):
            return f"if (FASTMARL_SLIP == {self.number}) {{ {self.after} }} else {{ {self.before} }}"
        if is_c:
            return f"(FASTMARL_SLIP == {self.number} ? ({self.after}) : ({self.before}))"
        if header is not None:
            other = re.fullmatch(r"(if|elif|while) (.*):", self.after)
            assert other is not None, self.name
            return f"{header[1]} (({other[2]}) if FASTMARL_SLIP == {self.number} else ({header[2]})):"
        if not is_lines:
            return f"(({self.after}) if FASTMARL_SLIP == {self.number} else ({self.before}))"
        indent = source[line_start : source.index(self.before)]
        lines = [f"if FASTMARL_SLIP == {self.number}:", _block(self.after or "pass", indent)]
        return "\n".join([*lines, f"{indent}else:", _block(self.before, indent)])


def _block(text: str, indent: str) -> str:
    return textwrap.indent(textwrap.dedent(indent + text), indent + " " * 4)


def read_slips() -> list[Slip]:
    with (ROOT / "tools/slips.toml").open("rb") as file:
        tables = tomllib.load(file)["slip"]
    slips = [Slip(i, **{**each, "tests": tuple(each["tests"])}) for i, each in enumerate(tables, start=1)]
    assert len({slip.name for slip in slips}) == len(slips), "two slips have one name"
    return slips


def make_tree(slips: list[Slip]) -> None:
    """Copy what git knows to TREE, with all native slips as choices, and build it there."""
    listed = subprocess.check_output(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT)
    wanted = {name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()}
    for path in [*TREE.rglob("*.py"), *TREE.rglob("*.pyx")]:
        name = path.relative_to(TREE).as_posix()
        if name not in wanted and not name.startswith("build/"):
            path.unlink()  # of an earlier run
    for name in sorted(wanted):
        _write_if_changed(TREE / name, _with_choices(name, slips), ROOT / name)
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(build, cwd=TREE, env={**os.environ, "PYTHONPATH": str(TREE)}, check=True)


def _with_choices(name: str, slips: list[Slip]) -> bytes:
    content = (ROOT / name).read_bytes()
    native = [slip for slip in slips if slip.file == name and slip.is_native]
    if not native:
        return content
    source = content.decode()
    for slip in native:
        source = slip.put_into(source)
    if name.endswith(".h"):
        return (CHOSEN + source).encode()
    chosen = f'cdef extern from *:\n    """{CHOSEN}"""\n    int FASTMARL_SLIP\n\n'
    first = re.search(r"^(?:c?p?def|class|ctypedef|@|[A-Z_]+ =)", source, re.MULTILINE)
    assert first is not None, name
    return (source[: first.start()] + chosen + source[first.start() :]).encode()


def _write_if_changed(path: Path, content: bytes, original: Path) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        shutil.copymode(original, path)


class _Slipped(importlib.machinery.SourceFileLoader):
    """Compiles a module with a slip in its source."""

    slip: Slip

    def get_code(self, fullname: str):
        source = self.slip.put_into(Path(self.path).read_text(encoding="utf-8"))
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder:
    def __init__(self, slip: Slip):
        self._slip = slip

    def find_spec(self, name: str, path=None, target=None):
        if name != self._slip.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.origin is not None, name
        spec.loader = _Slipped(name, spec.origin)
        spec.loader.slip = self._slip
        return spec


def run_tests(slip: Slip | None, tests: list[str], marks: str, log: Path) -> None:
    """Run tests in this process, which ends; the tests' own status is that of the process."""
    import pytest

    os.setpgid(0, 0)
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(TREE)
    sys.path[:0] = [str(TREE)]
    os.environ.update(PYTHONPATH=str(TREE), OMP_NUM_THREADS="1", FASTMARL_SLIP=str(slip.number if slip else 0))
    if slip is not None and not slip.is_native:
        if "njit" in (ROOT / slip.file).read_text():  # what numba has compiled before has no slip in it
            os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(dir=log.parent)
        sys.meta_path.insert(0, _Finder(slip))
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(TREE)]
    os._exit(pytest.main([*options, "-m", marks, *tests]))


def status_of(slip: Slip | None, tests: list[str], marks: str, log: Path) -> int:
    """Fork, run tests and return pytest's exit status, or -1 if they took too long."""
    child = os.fork()
    if child == 0:
        try:
            run_tests(slip, tests, marks, log)
        finally:
            os._exit(70)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def outcome_of(slip: Slip) -> str:
    """Return one of OUTCOMES; a process that dies or hangs under a slip counts as a test that failed."""
    log = TREE / "logs" / f"{slip.name.replace('/', '-').replace(' ', '_')}.log"
    log.unlink(missing_ok=True)
    of_rllib = [test for test in slip.tests if test.startswith("tests/rllib")]
    others = [test for test in slip.tests if test not in of_rllib]
    for tests, marks, name in ((others, FAST, "fast"), (others, SLOW, "slow"), (of_rllib, SUITE, "slow")):
        status = status_of(slip, tests, marks, log) if tests else 5
        if status in (2, 3, 4, 70):  # an error while tests were collected, in pytest or in its command line
            return "broken"
        if status not in (0, 5):  # 5: no such test
            return name
    return "equivalent" if slip.equivalent else "survived"


def outcomes(slips: list[Slip], jobs: int) -> Iterator[tuple[Slip, str, float]]:
    """Yield each slip, its outcome and its seconds, from `jobs` processes that take slips in turn."""
    read, write = os.pipe()
    waiting_read, waiting_write = os.pipe()
    os.write(waiting_write, b"".join(slip.number.to_bytes(2, "big") for slip in slips))
    os.close(waiting_write)
    by_number = {slip.number: slip for slip in slips}
    for _ in range(jobs):
        if os.fork() == 0:
            while taken := os.read(waiting_read, 2):
                started = time.monotonic()
                outcome = outcome_of(by_number[int.from_bytes(taken, "big")])
                line = json.dumps([int.from_bytes(taken, "big"), outcome, round(time.monotonic() - started, 1)])
                os.write(write, line.encode() + b"\n")
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as lines:
        for line in lines:
            number, outcome, seconds = json.loads(line)
            yield by_number[number], outcome, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("names", nargs="*", metavar="NAME", help="slips whose name or file has this in it")
    args = parser.parse_args()
    slips = read_slips()
    chosen = [s for s in slips if not args.names or any(n in s.name or n in s.file for n in args.names)]
    for slip in slips:
        slip.put_into((ROOT / slip.file).read_text(encoding="utf-8"))
    make_tree(slips)
    (TREE / "logs").mkdir(exist_ok=True)
    import numba  # noqa: F401 (loaded once, for all that are forked)
    import torch  # noqa: F401

    if native := sorted({test for slip in chosen if slip.is_native for test in slip.tests}):
        print("the build without a slip: ", end="", flush=True)
        log = TREE / "logs/none.log"
        log.unlink(missing_ok=True)
        of_rllib = [test for test in native if test.startswith("tests/rllib")]
        others = [test for test in native if test not in of_rllib]
        for tests, marks in ((others, FAST), (of_rllib, SUITE)):
            if tests and status_of(None, tests, marks, log) not in (0, 5):
                raise SystemExit(f"tests fail without a slip: {log}")
        print("passes", flush=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for slip, outcome, seconds in outcomes(chosen, args.jobs):
        print(f"{outcome:10} {seconds:6.1f} s  {slip.name} ({slip.file})", flush=True)
        results[slip.name] = outcome
        RESULTS.write_text(json.dumps(results, indent=1))
    found = [results[slip.name] for slip in chosen]
    print(", ".join(f"{found.count(outcome)} {outcome}" for outcome in OUTCOMES))
    return 2 if "broken" in found else int("survived" in found)


if __name__ == "__main__":
    raise SystemExit(main())
