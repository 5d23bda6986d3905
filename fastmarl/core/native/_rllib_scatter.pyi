from collections.abc import Callable
from typing import Any

import numpy as np

from fastmarl.core.native._leaf_rows import LeafRows
from fastmarl.core.native._module_rows import ModuleRows
from fastmarl.core.native._scatter import Scatter

def as_object(value: float, kind: int) -> Any: ...

class RewardKinds:
    others: dict[int, tuple[Any, int]]
    def __init__(self, kind_R: np.ndarray, others: dict[int, tuple[Any, int]]) -> None: ...

class ExactLeafRows(LeafRows):
    def __init__(
        self, array: np.ndarray, path: tuple, sizes: tuple[int, ...], on_unfit: Callable[[int, Any], None]
    ) -> None: ...

class RLlibScatter(Scatter):
    closed: list[int]
    unseen: list[int]
    everybody: bool
    def __init__(
        self, table: Any, grow: Callable[[int, int, int], None], modules: list[ModuleRows], merge_flags: bool
    ) -> None: ...
    def acting_modules(self, acting_from: list[int]) -> list[int]: ...
    def bind_kinds(self, module: int, kinds: RewardKinds) -> None: ...
