import numpy as np

class UnfitValueError(Exception): ...

class LeafRows:
    array: np.ndarray
    def __init__(self, array: np.ndarray, path: tuple, sizes: tuple[int, ...], any_form: bool = False) -> None: ...
