"""A sampler in a process of its own, which runs in its turns and is stopped in between."""

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
    """A sampler could not be set up, or failed while it ran; the text is one line."""


class MissingError(ChildError):
    """A package that the sampler needs is not installed in its Python."""


class Child(AbstractContextManager["Child"]):
    """A started `python -m peer_samplers`. A `with` statement ends its processes.

    Between its turns, its process group is stopped (SIGSTOP), so that busy waiting takes no time from other samplers.

    Args:
        python: The interpreter.
        module: a module of peer_samplers, or a substitute.
        setting: Argument of the module's `build`, as a dict.
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
        """Wait until the sampler is set up, and stop it.

        Returns:
            {"config": description of the setup, "versions": versions of packages}

        Raises:
            MissingError: If a package that it needs is not installed.
            ChildError: If it has failed, or is not ready within `timeout` seconds.
        """
        ready = self._answer(timeout, "to be ready")["ready"]
        self._stand_still()
        return ready

    def turn(self, warm: float, seconds: float, timeout: float) -> float:
        """Sample for `warm` seconds, then measure agent steps per second for `seconds` seconds.

        Raises:
            ChildError: If it has failed, or has not answered within `timeout` seconds.
        """
        self._signal(signal.SIGCONT)
        with suppress(ConnectionError):  # it has ended; its last words explain why
            self._pipe.send_bytes(json.dumps({"warm": warm, "seconds": seconds}).encode())
        answer = self._answer(timeout, "for its turn")
        self._stand_still()
        return answer["agent_steps"] / answer["seconds"]

    def end(self) -> None:
        """Ask the sampler to close, then end its remaining processes. Further calls do nothing."""
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
        """Stop the process group and wait for the main process: on busy cores a system call in a thread delays that."""
        self._signal(signal.SIGSTOP)
        deadline = monotonic() + SECONDS_TO_STOP
        stopped_or_ended = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        while os.waitid(os.P_PID, self._process.pid, stopped_or_ended) is None:
            if monotonic() > deadline:
                raise ChildError(f"took more than {SECONDS_TO_STOP:g} s to stop")
            sleep(0.001)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # the group may be empty
            os.killpg(self._process.pid, number)

    def _answer(self, timeout: float, why: str) -> dict[str, Any]:
        deadline = monotonic() + timeout
        while not self._pipe.poll(0.2):
            if self._process.poll() is not None:  # its forked processes may hold the pipe open
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
    """Return the path that leads to peer_samplers; this Python also inherits the path of this process."""
    if python != sys.executable:
        return [str(CHILDREN)]
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    return [str(CHILDREN), str(Path(__file__).parents[2]), *inherited]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def _descendants(pid: int) -> list[Any]:
    """Return all descendants of a process; those of Ray are not in its process group."""
    import psutil

    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
