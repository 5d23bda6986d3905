"""Calls under a lock. Compiled, so that no interrupt comes between a call's end and the lock's release."""


def locked(lock, function, *args):
    """What the function returns for these arguments, while this thread has the lock."""
    lock.acquire()
    try:
        return function(*args)
    finally:
        lock.release()
