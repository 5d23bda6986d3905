from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

from fastmarl.core.native._env_lanes import EnvLanes
from fastmarl.core.native._records import EpisodeRecord

Kind = TypeVar("Kind")

class ChunkNotes:
    numbers: np.ndarray
    lanes: list[int]
    ids: list[str]
    durations_s: list[float]
    own: list[tuple[Sequence[tuple[int, int, dict]], dict[str, Any], np.ndarray | None] | None]
    env_states: dict[int, np.ndarray]
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add_finished(
        self,
        records: list[EpisodeRecord | None],
        envs: list[EnvLanes],
        env_indices: list[int],
        flags: list[int],
        now: float,
    ) -> list[EpisodeRecord]: ...
    def add_running(
        self, records: list[EpisodeRecord | None], envs: list[EnvLanes], env_indices: list[int], now: float
    ) -> None: ...
    def take_as(self, kind: type[Kind]) -> list[Kind]: ...
    def head_of(self, place: int, agent_ids: tuple[Hashable, ...], kind: type[Kind]) -> Kind: ...
    def lanes_of(
        self, places: list[int], columns: np.ndarray, agent_ids: tuple[Hashable, ...]
    ) -> tuple[np.ndarray, np.ndarray, list[Hashable], np.ndarray]: ...

def lanes_with_steps(
    columns: np.ndarray,
    n_lanes: np.ndarray,
    agent_ids: list[Hashable],
    chunk_ids: list[str],
    first_chunk: int,
    number_of: Callable[[int], tuple[int, int]],
) -> tuple[np.ndarray, list[Hashable], list[str]]: ...
