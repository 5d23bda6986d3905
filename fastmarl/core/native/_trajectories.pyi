from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

class Steps:
    agent_id: Any
    env_id: Any
    obs: list[Any]
    infos: list[Any]
    times: list[int]
    rewards: list[Any]
    terminateds: list[Any]
    truncateds: list[Any]
    rows: list[int]
    unrolls: list[int]
    before: int
    n_initial: int
    n_initial_in_window: int
    pending: int
    is_built: bool
    unroll_id: int
    has_other_dtypes: bool
    def __init__(self, agent_id: Hashable, env_id: Any, before: int, first_reward: Any) -> None: ...
    def begin(self, obs: Any, info: Any, t: int) -> None: ...
    def begin_unroll(self) -> None: ...
    def drop_built(self) -> None: ...

Seen = tuple[Any, Any, Any, Any, Any, Any]

def seen_by_policy(
    episode: Any, known_policies: dict, obs: dict, rewards: dict, terminateds: dict, truncateds: dict, infos: dict
) -> tuple[dict[Any, list[Seen]], dict[Any, bool]]: ...
def take_steps(
    episode: Any,
    seen: list[Seen],
    observations: list[Any],
    t: int,
    is_over: bool,
    clip: Callable[[Any], Any] | None,
    first: Callable[[Any, Any, Any], Steps],
) -> list[Any]: ...
def put_actions(acting: list[Any], actions: list[Any], by_env: dict[Any, dict]) -> None: ...
def last_observations(acting: list[Any]) -> list[Any]: ...
def choose_rows(acting: list[Any], first: int) -> None: ...
def rows_before(acting: list[Any], before: int, rows: np.ndarray) -> bool: ...
