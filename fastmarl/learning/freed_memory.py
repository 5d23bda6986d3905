"""A setting that makes the C library keep freed memory instead of returning it to the system."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h of glibc
LARGEST_KEPT = 32 << 20  # bytes of a single array; maximum threshold of glibc


def keep_freed_memory(num_bytes: int = 1 << 30) -> bool:
    """Let the process reuse the memory of freed CPU arrays and tensors.

    A training loop allocates and frees the same megabytes in each update. By default, glibc returns them to the system,
    which clears them page by page before the next use.

    Args:
        num_bytes: Maximum number of bytes to keep.

    Returns:
        True if the C library is glibc, as on most Linux systems, and accepted the setting; otherwise nothing changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # missing in other C libraries and on Windows
        return False
    most = min(num_bytes, (1 << 31) - 1)  # mallopt takes an int
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(M_TRIM_THRESHOLD, most))
