"""Each of RLlib's connectors looks up its caller by `inspect.stack()`, which reads the source of every frame.

Where the stack is deep, as under pytest, that is most of the time of a test. LIGHT_INSPECT stands in for the module
`inspect` there: it looks at the two frames that are asked for.
"""

import inspect
import sys
from types import SimpleNamespace


def _stack() -> list[SimpleNamespace]:
    return [SimpleNamespace(frame=sys._getframe(1)), SimpleNamespace(frame=sys._getframe(2))]


LIGHT_INSPECT = SimpleNamespace(stack=_stack, getargvalues=inspect.getargvalues)
