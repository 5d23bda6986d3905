import numpy as np

def subtract_highest(logits_NK: np.ndarray, shifted_NK: np.ndarray, highest_N: np.ndarray) -> None: ...
def sum_rows(values_NK: np.ndarray, sum_N1: np.ndarray) -> None: ...
def subtract_sums(
    logits_NK: np.ndarray, log_sum_N1: np.ndarray, highest_N: np.ndarray, log_p_NK: np.ndarray
) -> None: ...
def first_to_ring(
    p_NK: np.ndarray, clock_NK: np.ndarray, log_p_NK: np.ndarray, action_N: np.ndarray, logp_N: np.ndarray
) -> None: ...
def move(
    logits_NK2: np.ndarray,
    std_NK: np.ndarray,
    log_std_NK: np.ndarray,
    noise_NK: np.ndarray,
    constant: float,
    action_NK: np.ndarray,
    term_NK: np.ndarray,
) -> None: ...
