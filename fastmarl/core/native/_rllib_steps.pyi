from collections.abc import Callable, Sequence
from typing import Any

def step_envs(
    envs: Sequence[Any],
    actions: list[dict],
    resets: list[bool],
    idle: set[int],
    on_failure: Callable[[int, Exception], None],
) -> tuple[list[tuple | None], list[bool]]: ...
def record_steps(
    sampler: Any,
    recording: Any,
    scatter: Any,
    records: list[Any],
    actions: list[dict],
    results: list[tuple | None],
    over: list[bool],
    resets: list[bool],
    now: float,
) -> tuple[list[int], int, int]: ...
