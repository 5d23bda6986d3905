"""`python -m peer_samplers NAME SETTING FD`: a child of `python -m benchmarks.peers` with JSON over the pipe FD.

It first sends a description of its setup, `{"ready": {"config": ..., "versions": ...}}`, or the reason of a failure,
`{"missing": PACKAGE}` or `{"error": TEXT}`. For each message `{"warm": SECONDS, "seconds": SECONDS}` it samples for
these times and answers `{"agent_steps": N, "seconds": SECONDS}`. It ends when the pipe is closed.
"""

import importlib.util
import json
import platform
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

SHOWN_VERSIONS = ("numpy", "torch", "gymnasium", "pettingzoo", "mpe2")  # besides the sampler's own


def main(name: str, setting: str, fd: str) -> int:
    pipe = Connection(int(fd))
    try:
        module, sampler = _build(name, json.loads(setting))
    except Exception as error:  # reports any error of a library
        return _failed(pipe, error)
    _tell(pipe, {"ready": {"config": sampler.config, "versions": _versions(module.DISTRIBUTION)}})
    with suppress(EOFError, ConnectionError):  # the pipe is closed
        while True:
            pace = json.loads(pipe.recv_bytes())
            try:
                made = _turn(sampler.collect, **pace)
            except Exception as error:
                return _failed(pipe, error)
            _tell(pipe, made)
    sampler.close()
    return 0


def _build(name: str, setting: dict[str, Any]) -> tuple[Any, Any]:
    """Return the sampler's module and its `Sampler`."""
    warnings.simplefilter("ignore")
    from peer_samplers.work import Setting

    module = importlib.import_module(f"peer_samplers.{name}")
    sampler = module.build(Setting(**setting))
    sampler.collect()  # compiles and allocates all that is done once
    return module, sampler


def _turn(collect: Callable[[], int], warm: float, seconds: float) -> dict[str, float]:
    """Sample for `warm` seconds, at least once, then time whole calls for at least `seconds` seconds."""
    begun = perf_counter()
    collect()
    while perf_counter() - begun < warm:
        collect()
    steps, begun = 0, perf_counter()
    while (passed := perf_counter() - begun) < seconds:
        steps += collect()
    return {"agent_steps": steps, "seconds": passed}


def _versions(distribution: str) -> dict[str, str]:
    """Return name -> version; packages that run from a checkout have none."""
    versions = {}
    for name in dict.fromkeys((distribution, *SHOWN_VERSIONS)):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {**versions, "python": platform.python_version()}


def _failed(pipe: Connection, error: Exception) -> int:
    traceback.print_exc()
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and importlib.util.find_spec(package) is None:
        _tell(pipe, {"missing": package})
    else:
        _tell(pipe, {"error": f"{type(error).__name__}: {error}"})
    return 1


def _tell(pipe: Connection, message: dict[str, Any]) -> None:
    pipe.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
