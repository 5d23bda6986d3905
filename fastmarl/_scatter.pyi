from collections.abc import Callable
from typing import Any

import numpy as np

from fastmarl._leaf_rows import LeafRows

class ModuleRows:
    n: int
    n_finals: int
    capacity: int
    final_capacity: int
    def bind(
        self,
        leaves: list[LeafRows],
        lane_R: np.ndarray,
        prev_R: np.ndarray,
        env_t_R: np.ndarray,
        reward_R: np.ndarray,
    ) -> None: ...
    def bind_finals(self, leaves: list[LeafRows], final_prev_F: np.ndarray, final_at_F: np.ndarray) -> None: ...

class EnvLanes:
    lane_of: dict[Any, int]
    infos: list[tuple[int, int, dict]]
    env_t: int
    n_steps: int
    n_acting: int
    def set_order(self, order: np.ndarray | None) -> None: ...
    def clear(self) -> None: ...

def private_copy(info: Any, env_index: int, agent_id: Any, env_t: int) -> dict: ...
def waiting_places(now: np.ndarray, acting_from: list[int]) -> list[int]: ...
def set_env_steps(envs: list[EnvLanes], env_t_E: np.ndarray) -> None: ...

class Scatter:
    modules: list[ModuleRows]
    envs: list[EnvLanes]
    def __init__(self, table: Any, grow: Callable[[int, bool], None], modules: list[ModuleRows]) -> None: ...
    def bind_lanes(self) -> None: ...
    def lanes_now(self, lanes: list[int]) -> np.ndarray: ...
    def write_reset(self, env_index: int, obs: dict, infos: dict) -> None: ...
    def write_step(
        self, env_index: int, obs: dict, rewards: dict, terminateds: dict, truncateds: dict, infos: dict
    ) -> int: ...
    def interrupt(self, env_index: int) -> None: ...
    def forget_done_lanes(self) -> None: ...
