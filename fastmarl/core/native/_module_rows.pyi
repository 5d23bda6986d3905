import numpy as np

from fastmarl.core.native._leaf_rows import LeafRows

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
