"""Calls in forked processes: a new interpreter would need seconds for torch and RLlib, of which nothing is tested."""

import multiprocessing
import sys
import warnings
from collections.abc import Callable
from typing import Any


def exit_code_of(function: Callable, *args: Any) -> int:
    """Return how a process ends that calls a function; negative numbers are those of signals."""
    process = _started(function, *args)
    process.join()
    return process.exitcode


def with_new_modules(package: str, function: Callable, *args: Any) -> Any:
    """Return what a function returns in a process that has none of a package's modules."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = _started(_send_result, sender, package, function, *args)
    sender.close()
    with receiver:
        result = receiver.recv()
    process.join()
    return result


def _started(function: Callable, *args: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=function, args=args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, which the new process does without
        process.start()
    return process


def _send_result(sender: Any, package: str, function: Callable, *args: Any) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    sender.send(function(*args))
