"""Access to RLlib classes: RLlib is only imported for conversions, and its classes are recognised without it."""

import sys
from importlib import import_module
from typing import Any


def rllib_class(module: str, name: str) -> Any:
    """Return the class `name` of `ray.rllib.<module>`.

    Raises:
        ImportError: If RLlib is not installed.
    """
    try:
        return getattr(import_module(f"ray.rllib.{module}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"this needs RLlib, pip install 'ray[rllib]': {error}") from error


def is_of_rllib(kind: type) -> bool:
    """Return True if the class, or one of its base classes, is defined in RLlib."""
    return any(base.__module__.startswith("ray.rllib.") for base in kind.__mro__)


def fetched(value: Any) -> Any:
    """Return the object that a reference into the Ray object store points to; other values are returned unchanged."""
    ray: Any = sys.modules.get("ray")
    return ray.get(value) if isinstance(value, getattr(ray, "ObjectRef", ())) else value
