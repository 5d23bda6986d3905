from collections.abc import Iterable

from torch import nn

class WeightsWatch:
    def __init__(self, parts: Iterable[nn.Module]) -> None: ...
    def holds(self) -> bool: ...
