"""Calls under a lock. Compiled, so that no interrupt comes between a call's end and the lock's release."""


def locked(lock, function, *args):
    """Call the function while this thread holds the lock; return its result."""
    lock.acquire()
    try:
        return function(*args)
    finally:
        lock.release()
