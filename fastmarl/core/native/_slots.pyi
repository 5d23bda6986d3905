from collections.abc import Callable
from typing import Any

import numpy as np

class MisfitError(Exception): ...

class ResultWriter:
    def __init__(
        self,
        keys: list,
        places_PK: np.ndarray,
        flags_FK: np.ndarray,
        reward_K: np.ndarray,
        arrays: list[np.ndarray | None],
        slow_writers: list[Callable[[Any], None]],
    ) -> None: ...
    def write(self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any) -> None: ...

class ResultReader:
    def __init__(
        self,
        keys: list,
        header: np.ndarray,
        places_PK: np.ndarray,
        flags_FK: np.ndarray,
        reward_K: np.ndarray,
        values: list,
    ) -> None: ...
    def read(self, infos: dict) -> tuple[dict, dict, dict, dict, dict]: ...

class ActionSlots:
    def __init__(
        self, agents: list, order_K: np.ndarray, number_K: np.ndarray, arrays: list[np.ndarray | None]
    ) -> None: ...
    def write(self, actions: dict) -> bool: ...
    def read(self) -> dict: ...

def has_any_info(infos: dict) -> bool: ...
