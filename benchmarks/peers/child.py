"""A sampler in a process of its own, which is told when to run and otherwise stands still."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, suppress
from multiprocessing import Pipe
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from fastmarl.core.errors import FastmarlError

CHILDREN = Path(__file__).parent / "children"
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")}
SECONDS_TO_CLOSE = 10.0
SECONDS_TO_STOP = 10.0


class ChildError(FastmarlError):
    """A sampler could not be set up, or failed while it ran, in one line."""


class MissingError(ChildError):
    """What it needs is not installed in its Python."""


class Child(AbstractContextManager["Child"]):
    """A started `python -m peer_samplers`. Use it in a `with` statement: its processes are then ended.

    Between its turns it and the processes it has started in its process group are stopped (SIGSTOP), so that those who
    wait busily take no time from the others.

    Args:
        python: the interpreter.
        module: of peer_samplers, or what stands for one.
        setting: what its `build` gets, as a dict.
    """

    def __init__(self, python: str, module: str, setting: dict[str, Any]):
        self._printed = tempfile.TemporaryFile("w+")  # noqa: SIM115  end() closes it
        self._pipe, its_end = Pipe()
        with its_end:
            self._process = subprocess.Popen(
                [python, "-m", "peer_samplers", module, json.dumps(setting), str(its_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(_paths(python))},
                pass_fds=[its_end.fileno()],
                process_group=0,
            )

    def __exit__(self, *exception: object) -> None:
        self.end()

    def wait_until_ready(self, timeout: float) -> dict[str, Any]:
        """{"config": how it is set up, "versions": of what}; it stands still from then on.

        Raises:
            MissingError: a package that it needs is not installed.
            ChildError: it has failed, or is not ready in `timeout` seconds.
        """
        ready = self._answer(timeout, "to be ready")["ready"]
        self._stand_still()
        return ready

    def turn(self, warm: float, seconds: float, timeout: float) -> float:
        """Agent steps per second of `seconds` of sampling, after `warm` seconds that do not count.

        Raises:
            ChildError: it has failed, or has not answered in `timeout` seconds.
        """
        self._signal(signal.SIGCONT)
        with suppress(ConnectionError):  # if it has ended, what it said last tells why
            self._pipe.send_bytes(json.dumps({"warm": warm, "seconds": seconds}).encode())
        answer = self._answer(timeout, "for its turn")
        self._stand_still()
        return answer["agent_steps"] / answer["seconds"]

    def end(self) -> None:
        """Ask it to close, then end all that is left of it. Again: nothing."""
        from psutil import NoSuchProcess

        if self._pipe.closed:
            return
        started = _descendants(self._process.pid)
        self._signal(signal.SIGCONT)
        self._pipe.close()
        try:
            self._process.wait(SECONDS_TO_CLOSE)
        except subprocess.TimeoutExpired:
            started += _descendants(self._process.pid)
        self._signal(signal.SIGKILL)
        for process in started:
            with suppress(NoSuchProcess):
                process.kill()
        self._process.wait()
        self._printed.close()

    def _stand_still(self) -> None:
        """Stop its group, and wait for its own process: on busy cores a thread in a system call ends that first."""
        self._signal(signal.SIGSTOP)
        deadline = monotonic() + SECONDS_TO_STOP
        stopped_or_ended = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        while os.waitid(os.P_PID, self._process.pid, stopped_or_ended) is None:
            if monotonic() > deadline:
                raise ChildError(f"took more than {SECONDS_TO_STOP:g} s to stop")
            sleep(0.001)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # nobody may be left in the group
            os.killpg(self._process.pid, number)

    def _answer(self, timeout: float, why: str) -> dict[str, Any]:
        deadline = monotonic() + timeout
        while not self._pipe.poll(0.2):
            if self._process.poll() is not None:  # processes that it has forked may hold its end open
                raise ChildError(self._last_words())
            if monotonic() > deadline:
                raise ChildError(f"took more than {timeout:g} s {why}")
        try:
            answer = json.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise ChildError(self._last_words()) from error
        if "missing" in answer:
            raise MissingError(f"{answer['missing']} is not installed")
        if "error" in answer:
            raise ChildError(_one_line(answer["error"]))
        return answer

    def _last_words(self) -> str:
        self._printed.seek(0)
        lines = [line for line in self._printed.read().splitlines() if line.strip()]
        return _one_line(f"ended with exit code {self._process.wait()}: {lines[-1] if lines else 'it said nothing'}")


def _paths(python: str) -> list[str]:
    """Where it finds peer_samplers; this Python also finds what this process does, others have what they have."""
    if python != sys.executable:
        return [str(CHILDREN)]
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    return [str(CHILDREN), str(Path(__file__).parents[2]), *inherited]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _descendants(pid: int) -> list[Any]:
    """Processes that it has started, and those that these have; Ray's are in no group of its."""
    import psutil

    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
