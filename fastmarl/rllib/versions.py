"""The versions of Ray that the fast path was tested with. It mirrors RLlib's internals, which change over time."""

import ray

TESTED = ("2.58.0", "2.58.1", "2.59.0", "2.60.0")


def untested_ray() -> str | None:
    """Return the reason why the fast path can't run with the installed version of Ray, or None if it can."""
    if ray.__version__ in TESTED:
        return None
    return f"Ray {ray.__version__} is not one of the versions that fastmarl was tested with ({', '.join(TESTED)})"
