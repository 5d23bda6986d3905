"""Spawned processes that skip the user script, which multiprocessing would import first."""

from __future__ import annotations

import multiprocessing
from multiprocessing import popen_spawn_posix, spawn
from multiprocessing.context import SpawnProcess
from types import FunctionType
from typing import Any

OF_SCRIPT = ("init_main_from_name", "init_main_from_path")  # keys in multiprocessing's preparation data


def mentions_script(pickled: bytes) -> bool:
    """Return True if a pickle may refer to the script, as `__main__` or, in processes that imported it, `__mp_main__`.

    Pickles contain the module name of each class and function, including functions that cloudpickle pickles by value.
    """
    return b"_main__" in pickled


def import_script() -> None:
    """Import the script in a `ScriptlessProcess` unless already imported; do nothing in other processes."""
    spawn.prepare(vars(multiprocessing.current_process()).pop("script", {}))


class _SpawnWithoutScript:
    """Forwards to `multiprocessing.spawn`, but does not ask a new process to import the script."""

    def __getattr__(self, name: str) -> Any:
        return getattr(spawn, name)

    def get_preparation_data(self, name: str) -> dict[str, Any]:
        return {key: value for key, value in spawn.get_preparation_data(name).items() if key not in OF_SCRIPT}


_of_popen: Any = popen_spawn_posix.Popen._launch  # type: ignore[attr-defined]


class _Popen(popen_spawn_posix.Popen):
    # The original function with a different global `spawn`; patching it would affect processes started by other
    # threads.
    _launch = FunctionType(_of_popen.__code__, {**_of_popen.__globals__, "spawn": _SpawnWithoutScript()})


class ScriptlessProcess(SpawnProcess):
    """A spawned process that does not import the script unless it calls `import_script()`.

    Attributes:
        script: Preparation data for importing the script; empty without a script, such as in a notebook.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        asked = spawn.get_preparation_data(process_obj.name)
        process_obj.script = {key: asked[key] for key in OF_SCRIPT if key in asked}
        return _Popen(process_obj)
