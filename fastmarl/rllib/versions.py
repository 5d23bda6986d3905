"""Which versions of Ray the fast path was tested with. RLlib's internals, which it mirrors, change between them."""

import ray

TESTED = ("2.58.0", "2.58.1", "2.59.0", "2.60.0")


def untested_ray() -> str | None:
    """Why the fast path can't be taken with the Ray that is installed; None: it can."""
    if ray.__version__ in TESTED:
        return None
    return f"Ray {ray.__version__} is not one of the versions that fastmarl was tested with ({', '.join(TESTED)})"
