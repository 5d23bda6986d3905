from collections.abc import Sequence

import numpy as np

from fastmarl.core.native._env_lanes import EnvLanes
from fastmarl.core.native._module_rows import ModuleRows

class GroupSteps:
    modules: list[int]
    sources: dict[int, list[np.ndarray]]
    def __init__(
        self,
        envs: list[EnvLanes],
        lane_P: np.ndarray,
        module_P: np.ndarray,
        reward_P: np.ndarray,
        terminated_P: np.ndarray,
        truncated_P: np.ndarray,
        present_P: np.ndarray,
        over: np.ndarray,
        env_t_E: np.ndarray,
        all_done_E: np.ndarray,
        actions: list[np.ndarray],
        ranges: Sequence[tuple[np.ndarray, np.ndarray] | None],
        first_position: int,
    ) -> None: ...
    def begin(self) -> None: ...
    def put(self, values: list[np.ndarray], lane_R: np.ndarray, first: int, place_L: np.ndarray) -> bool: ...

def record_ordinary(
    groups: list[GroupSteps], rows: list[ModuleRows], row_L: np.ndarray, count_L: np.ndarray, done_L: np.ndarray
) -> bool: ...
def put_rows(
    values: np.ndarray, lane_R: np.ndarray, first: int, place_L: np.ndarray, first_position: int, out: np.ndarray
) -> None: ...
