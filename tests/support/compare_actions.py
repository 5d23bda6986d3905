"""Actions of any space, compared."""

from typing import Any

import numpy as np


def close(sent: Any, given: Any, tolerance: float) -> bool:
    """Return true if discrete numbers are equal, and others differ by at most the tolerance (relative or absolute)."""
    if isinstance(sent, dict):
        return list(sent) == list(given) and all(close(sent[key], given[key], tolerance) for key in sent)
    if isinstance(sent, tuple):
        return len(sent) == len(given) and all(map(close, sent, given, [tolerance] * len(sent)))
    sent, given = np.asarray(sent), np.asarray(given)
    if sent.dtype.kind != "f":
        return sent.dtype == given.dtype and np.array_equal(sent, given)
    return sent.dtype == given.dtype and np.allclose(sent, given, rtol=tolerance, atol=tolerance)
