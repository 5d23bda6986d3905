"""Access to RLlib classes without importing RLlib, except for conversions."""

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
        raise ImportError(f"this needs RLlib; install it with pip install 'ray[rllib]': {error}") from error


def is_of_rllib(kind: type) -> bool:
    """Return True if the class or one of its base classes is defined in RLlib."""
    return any(base.__module__.startswith("ray.rllib.") for base in kind.__mro__)


def fetched(value: Any) -> Any:
    """Return the object behind a Ray ObjectRef; other values are returned unchanged."""
    ray: Any = sys.modules.get("ray")
    return ray.get(value) if isinstance(value, getattr(ray, "ObjectRef", ())) else value
