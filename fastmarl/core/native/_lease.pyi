from collections import deque
from typing import Any

class Lease:
    def __init__(self, memory: Any, idle: deque[Any]) -> None: ...
