import numpy as np

def chains(prev_R: np.ndarray, last_S: np.ndarray, n_S: np.ndarray) -> np.ndarray: ...
def chain(prev_R: np.ndarray, last: int, n: int) -> tuple[np.ndarray, int]: ...
def carried(
    lanes: np.ndarray,
    row_L: np.ndarray,
    count_L: np.ndarray,
    from_env_t: np.ndarray,
    prev_R: np.ndarray,
    env_t_R: np.ndarray,
    min_lookback_rows: int = 0,
) -> tuple[np.ndarray, np.ndarray]: ...
def write_rows(columns: dict, outputs: dict, first: int, n: int) -> bool: ...
