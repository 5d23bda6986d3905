"""Whether functions of users can be called as they will be."""

import inspect
from collections.abc import Callable


def misfit(function: Callable, *args: object, **kwargs: object) -> str:
    """Why `function(*args, **kwargs)` can't be called, in Python's words; "" if it can, or doesn't say."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # decorators may take more than what they wrap
    except (TypeError, ValueError):  # some callables of extensions have none
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""
