from collections.abc import Mapping
from typing import Any

import numpy as np

def all_finite(outputs: Mapping[Any, np.ndarray]) -> bool: ...
def first_unfit(values: np.ndarray, least: float, most: float) -> int: ...
