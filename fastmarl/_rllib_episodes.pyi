from typing import Any

import numpy as np

ndarray: type[np.ndarray]
InfiniteLookbackBuffer: type

def chains(prev_R: np.ndarray, lasts: np.ndarray, counts: np.ndarray) -> np.ndarray: ...
def with_finals(
    rows_of: np.ndarray, finals_of: np.ndarray, rows: np.ndarray, counts: np.ndarray, finals: np.ndarray
) -> np.ndarray: ...
def time_map(env_ts: np.ndarray, length: int, offset: int, first_t: int, final_place: int) -> list: ...
def empty_infos(n: int) -> list[dict]: ...
def sums(values: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray: ...
def buffer_of(data: Any, lookback: int, finalized: bool, space: Any, space_struct: Any) -> Any: ...
def agent_part(
    who: tuple,
    spaces: tuple,
    observations: Any,
    infos: list,
    actions: Any,
    rewards: np.ndarray,
    extras: dict[str, Any],
    when: tuple[int, int, int],
    flags: tuple[Any, Any],
    clock: tuple[float, float],
) -> Any: ...
def is_slice(view: Any, array: np.ndarray, begin: int, end: int) -> bool: ...
