from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

class CallGuard:
    running: str | None
    def run(self, name: str, function: Callable[..., T], arguments: dict[str, Any]) -> T: ...
    def check(self, name: str, *, or_within: bool = False) -> None: ...
