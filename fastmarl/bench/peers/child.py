"""A sampler in a process of its own, which is told when to run and otherwise stands still."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import fastmarl
from fastmarl.errors import FastmarlError

CHILDREN = Path(__file__).parent / "children"
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")}
SECONDS_TO_CLOSE = 10.0


class ChildError(FastmarlError):
    """A sampler could not be set up, or failed while it ran, in one line."""


class MissingError(ChildError):
    """What it needs is not installed in its Python."""


class Child:
    """A started `python -m peer_samplers MODULE SETTING`. Use it in a `with` statement: its processes are then ended.

    Between its turns it and the processes it has started in its process group are stopped (SIGSTOP), so that those who
    wait busily take no time from the others.

    Args:
        python: the interpreter.
        module: of peer_samplers, or what stands for one.
        setting: what its `build` gets, as a dict.
    """

    def __init__(self, python: str, module: str, setting: dict[str, Any]):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  end() closes it
        self._process = subprocess.Popen(
            [python, "-m", "peer_samplers", module, json.dumps(setting)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(_paths(python))},
            process_group=0,
        )
        self._unread = b""

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def wait_until_ready(self, timeout: float) -> dict[str, Any]:
        """{"config": how it is set up, "versions": of what}; it stands still from then on.

        Raises:
            MissingError: a package that it needs is not installed.
            ChildError: it has failed, or is not ready in `timeout` seconds.
        """
        ready = self._answer(timeout, "to be ready")["ready"]
        self._signal(signal.SIGSTOP)
        return ready

    def turn(self, warm: float, seconds: float, timeout: float) -> float:
        """Agent steps per second of `seconds` of sampling, after `warm` seconds that do not count.

        Raises:
            ChildError: it has failed, or has not answered in `timeout` seconds.
        """
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # if it has ended, what it said last tells why
            self._process.stdin.write(json.dumps({"warm": warm, "seconds": seconds}).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._answer(timeout, "for its turn")
        self._signal(signal.SIGSTOP)
        return answer["agent_steps"] / answer["seconds"]

    def end(self) -> None:
        """Ask it to close, then end all that is left of it. Again: nothing."""
        from psutil import NoSuchProcess

        if self._errors.closed:
            return
        started = _descendants(self._process.pid)
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            started += _descendants(self._process.pid)
        self._signal(signal.SIGKILL)
        for process in started:
            with suppress(NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # nobody may be left in the group
            os.killpg(self._process.pid, number)

    def _answer(self, timeout: float, why: str) -> dict[str, Any]:
        answer = json.loads(self._line(monotonic() + timeout, f"took more than {timeout:g} s {why}"))
        if "missing" in answer:
            raise MissingError(f"{answer['missing']} is not installed")
        if "error" in answer:
            raise ChildError(_one_line(answer["error"]))
        return answer

    def _line(self, deadline: float, too_late: str) -> bytes:
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if selector.select(timeout=0.2):
                    read = os.read(file, 65_536)
                    self._unread += read
                    if not read:
                        raise ChildError(self._last_words())
                # Processes that it has forked may hold its stdout open.
                elif self._process.poll() is not None:
                    raise ChildError(self._last_words())
                if monotonic() > deadline:
                    raise ChildError(too_late)
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        return _one_line(f"ended with exit code {self._process.wait()}: {lines[-1] if lines else 'it said nothing'}")


def _paths(python: str) -> list[str]:
    """Where it finds peer_samplers; this Python also finds what this process does, others have what they have."""
    if python != sys.executable:
        return [str(CHILDREN)]
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    return [str(CHILDREN), str(Path(fastmarl.__file__).parents[1]), *inherited]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _descendants(pid: int) -> list[Any]:
    """Processes that it has started, and those that these have; Ray's are in no group of its."""
    import psutil

    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
