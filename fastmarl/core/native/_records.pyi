from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from fastmarl.core.native._env_lanes import EnvLanes

REMEMBERED: int

class EpisodeRecord:
    env_index: int
    id_: str
    started_at: float
    duration_s: float
    env_steps: int
    env_t_started: int
    lookback: int
    env_states_from: int
    lanes: list[int]
    joining: tuple[int, ...]
    ended: list[int]
    finished: dict[Hashable, int]
    early_rewards: dict[Hashable, float]
    policy_mapping_fn: Any
    only_module: int
    module_of: dict[Hashable, int]
    opened: Any
    custom_data: dict[str, Any]
    reset_seed: int
    agent_returns: dict[Hashable, float]
    agent_steps: dict[Hashable, int]
    module_returns: dict[int, float]
    def __init__(self, env_index: int, id_: str, started_at: float) -> None: ...

def episode_id(run_id: str, number: int) -> str: ...
def open_all(
    records: list[EpisodeRecord | None],
    envs: list[EnvLanes],
    env_indices: list[int],
    spare: list[EpisodeRecord],
    run_id: str,
    number: int,
    now: float,
) -> None: ...
def map_all(
    records: list[EpisodeRecord | None], env_indices: list[int], policy_mapping_fn: Any, only_module: int
) -> None: ...
def next_chunks(
    records: list[EpisodeRecord], envs: list[EnvLanes], lookback_E: np.ndarray, done_L: np.ndarray
) -> None: ...
def with_new_infos(records: list[EpisodeRecord | None], envs: list[EnvLanes]) -> list[EnvLanes]: ...
def join_all(
    records: list[EpisodeRecord | None],
    envs: list[EnvLanes],
    env_indices: list[int],
    present: np.ndarray,
    agents: list[Hashable],
    free: list[int],
    agent_ids: list[Hashable],
    module_for: Callable[[Hashable, int], int],
) -> tuple[np.ndarray, np.ndarray]: ...
def finish_all(
    records: list[EpisodeRecord | None],
    envs: list[EnvLanes],
    agent_ids: list[Hashable],
    env_indices: np.ndarray,
    lanes: np.ndarray,
) -> None: ...
def settle_all(
    records: list[EpisodeRecord],
    agent_ids: list[Hashable],
    module_L: np.ndarray,
    return_L: np.ndarray,
    steps_L: np.ndarray,
) -> list[int]: ...
def steps_by_agent(agent_ids: list[Hashable], actions_L: np.ndarray) -> dict[Hashable, int]: ...
def note_reset_seeds(records: list[EpisodeRecord | None], seeds: list[int | None], env_indices: list[int]) -> None: ...
