from collections.abc import Iterable
from typing import Any

from torch import nn

class WeightsWatch:
    def __init__(self, parts: Iterable[nn.Module], *, children_only: bool = False) -> None: ...
    def holds(self) -> bool: ...

def all_hold(watched: dict[str, tuple[Any, WeightsWatch]], modules: Any, module_ids: Iterable[str]) -> bool: ...
