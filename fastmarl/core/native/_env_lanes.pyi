from typing import Any

import numpy as np

class EnvLanes:
    lane_of: dict[Any, int]
    infos: list[tuple[int, int, dict]]
    env_t: int
    n_steps: int
    n_acting: int
    is_complete: bool
    all_done: int
    order: np.ndarray | None
    def clear(self) -> None: ...
    def acting(self) -> list[int]: ...
    def resume(self, env_t: int, agent_ids: list[Any], lanes: list[int], acting: list[int], infos: list) -> None: ...

def set_env_steps(envs: list[EnvLanes], env_t_E: np.ndarray) -> None: ...
def end_step(envs: list[EnvLanes], all_done_E: np.ndarray) -> None: ...
