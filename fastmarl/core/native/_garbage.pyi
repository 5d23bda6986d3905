from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

def without_collection(function: Callable[..., T], *arguments: Any) -> T: ...
