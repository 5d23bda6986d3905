"""RLlib's classes, for conversions: RLlib is imported when one is asked for, and recognised without importing it."""

import sys
from importlib import import_module
from typing import Any


def rllib_class(module: str, name: str) -> Any:
    """Return the class `name` of `ray.rllib.<module>`.

    Raises:
        ImportError: RLlib is not installed.
    """
    try:
        return getattr(import_module(f"ray.rllib.{module}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"this needs RLlib, pip install 'ray[rllib]': {error}") from error


def is_of_rllib(kind: type) -> bool:
    """Return true if RLlib defines the class, or one that it extends."""
    return any(base.__module__.startswith("ray.rllib.") for base in kind.__mro__)


def fetched(value: Any) -> Any:
    """The object itself, where this is a reference to one in Ray's store."""
    ray: Any = sys.modules.get("ray")
    return ray.get(value) if isinstance(value, getattr(ray, "ObjectRef", ())) else value
