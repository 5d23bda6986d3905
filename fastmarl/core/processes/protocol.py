"""What both sides of a channel to another process keep to."""

from __future__ import annotations

import os
import pickle
import threading
import time

FIRST = 1  # number of the answer that tells that the process is ready
CLOSE = b"x"  # the message that ends it
DONE, FAILED = b"d", b"f"  # the first byte of an answer
PARENT_CHECKED_EVERY_S = 1.0


def end_with(parent: int) -> None:
    """End this process soon after its parent, of this process id. While it waits for a message, it learns that from its
    channel."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECKED_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def pickled_error(error: BaseException) -> bytes:
    """Empty if it can't be made again of its pickle."""
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # its class may raise whatever it likes
        return b""
    return pickled
