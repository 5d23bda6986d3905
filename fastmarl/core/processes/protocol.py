"""Message protocol between a process and its child."""

from __future__ import annotations

import os
import pickle
import threading
import time

FIRST = 1  # number of the answer that reports the process as ready
CLOSE = b"x"  # message that makes the process exit
DONE, FAILED = b"d", b"f"  # first byte of an answer
PARENT_CHECKED_EVERY_S = 1.0


def end_with(parent: int) -> None:
    """Exit this process soon after its parent exits, even if it is not waiting for a message.

    Args:
        parent: Process id of the parent.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECKED_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def pickled_error(error: BaseException) -> bytes:
    """Pickle an error; return empty bytes if it cannot be unpickled again."""
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # its class may raise anything
        return b""
    return pickled
