"""Number of CPU cores available to this process."""

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the number of cores that this process can use, according to its affinity and its cgroup's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (CGROUPS / "cpu.max").read_text().split()
    except (OSError, ValueError):  # no cgroups, or cgroups v1
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
