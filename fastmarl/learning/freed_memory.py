"""Memory that the C library keeps instead of giving it back to the system."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_KEPT = 32 << 20  # bytes of one array; glibc takes no higher threshold


def keep_freed_memory(num_bytes: int = 1 << 30) -> bool:
    """Have the process keep the memory that arrays and tensors on the CPU were freed of, for those that come next.

    A training loop makes and frees the same megabytes in each update. By default glibc gives them back to the system,
    which must clear them page by page when they are asked for again.

    Args:
        num_bytes: that may be kept.

    Returns:
        Whether the C library does so: glibc, that of most Linux systems. Else nothing has changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; Windows has none of that name
        return False
    most = min(num_bytes, (1 << 31) - 1)  # mallopt takes an int
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT) and mallopt(M_TRIM_THRESHOLD, most))
