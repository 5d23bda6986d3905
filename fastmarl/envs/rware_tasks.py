"""Options, names and warehouse floors of the `rware` package's tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fastmarl.core.errors import ConfigError

OUTSIDE, HIGHWAY, STORAGE = range(3)  # kinds of cells
_SIZES = {"tiny": (1, 3), "small": (2, 3), "medium": (2, 5), "large": (3, 5)}  # shelf rows, shelf columns
_REQUESTS_PER_AGENT = {"-easy": 2.0, "": 1.0, "-hard": 0.5}
_REWARDS = {"indiv": "individual", "global": "global", "twostage": "two_stage"}
_SIGHT = r"rware(?:-(?P<sensor_range>[2-5])s)?-"
_SIZED = re.compile(
    _SIGHT + r"(?P<size>[a-z]+)(?:-(?P<column_height>\d+)h)?-(?P<n_agents>\d+)ag(?P<difficulty>|-easy|-hard)-v2"
)
_NUMBERED = re.compile(
    _SIGHT + r"(?P<shelf_rows>\d+)x(?P<shelf_columns>\d+)-(?P<column_height>\d+)h-(?P<n_agents>\d+)ag-"
    r"(?P<request_queue_size>\d+)req-(?P<reward>[a-z]+)-v2"
)


@dataclass(frozen=True)
class Task:
    """Options of the `rware` Warehouse, under the same names; see `fastmarl.envs.rware.Warehouse`.

    Raises:
        ConfigError: If a number is too small, or an option has an unknown value.
    """

    shelf_columns: int
    shelf_rows: int
    n_agents: int
    request_queue_size: int
    column_height: int = 8
    msg_bits: int = 0
    sensor_range: int = 1
    max_inactivity_steps: int | None = None
    max_steps: int | None = 500
    reward_type: str = "individual"
    layout: str | None = None
    observation_type: str = "flattened"
    normalised_coordinates: bool = False

    def __post_init__(self) -> None:
        for name in ("reward_type", "observation_type"):  # accept members of rware's enums by name
            value = getattr(self, name)
            object.__setattr__(self, name, str(getattr(value, "name", value)).lower())
        least = {"shelf_columns": 1, "shelf_rows": 1, "column_height": 1, "n_agents": 1, "max_steps": 1,
                 "max_inactivity_steps": 1, "msg_bits": 0, "sensor_range": 0, "request_queue_size": 0}  # fmt: skip
        for name, bound in least.items():
            if (value := getattr(self, name)) is not None and value < bound:
                raise ConfigError(f"{name} must be at least {bound}, got {value}")
        if self.shelf_columns % 2 == 0:
            raise ConfigError(
                f"shelf_columns must be odd, so that the goals are in the middle, got {self.shelf_columns}"
            )
        if self.reward_type not in _REWARDS.values():
            raise ConfigError(f"reward_type must be one of {', '.join(_REWARDS.values())}, got {self.reward_type!r}")
        if self.observation_type != "flattened":
            raise ConfigError(f"observation_type must be 'flattened', got {self.observation_type!r}; for other types, "
                              "use rware itself, such as env=\"rware:rware-tiny-2ag-v2\"")  # fmt: skip


def task_named(name: str, options: dict[str, Any]) -> Task:
    """Return the task that `rware` registers under a name, with some options overridden.

    Raises:
        ConfigError: If `rware` has no task of this name, or an option is invalid.
        TypeError: If an option is unknown.
    """
    match = _SIZED.fullmatch(name) or _NUMBERED.fullmatch(name)
    part = match.groupdict() if match else {}
    if part.get("size", "tiny") not in _SIZES or part.get("reward", "indiv") not in _REWARDS or not part:
        raise ConfigError(f"unknown task {name!r}: expected a name such as rware-tiny-2ag-v2, rware-small-4ag-hard-v2, "
                          "rware-2s-tiny-10h-2ag-easy-v2 or rware-1x3-8h-2ag-4req-twostage-v2")  # fmt: skip
    named: dict[str, Any] = {key: int(value) for key, value in part.items() if value and value.isdigit()}
    if "size" in part:
        named["shelf_rows"], named["shelf_columns"] = _SIZES[part["size"]]
        named["request_queue_size"] = int(named["n_agents"] * _REQUESTS_PER_AGENT[part["difficulty"]])
    else:
        named["reward_type"] = _REWARDS[part["reward"]]
    if unknown := set(options) - {field.name for field in fields(Task)}:
        raise TypeError(f"unexpected keyword argument {sorted(unknown)[0]!r}")
    return Task(**{**named, **options})


def floor_of(task: Task) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return the cells and goals of a warehouse.

    Returns:
        (cells: uint8 [rows, columns] of HIGHWAY and STORAGE; goals: list of (x, y) in the order in which deliveries are
        checked).

    Raises:
        ConfigError: If there is no room for all robots and requests, or `layout` cannot be parsed.
    """
    floor, goals = _drawn_floor(task.layout) if task.layout else _regular_floor(task)
    n_shelves = int((floor == STORAGE).sum())
    if task.n_agents > floor.size:
        raise ConfigError(f"{task.n_agents} robots need one cell each, but there are only {floor.size}")
    if task.request_queue_size and task.request_queue_size >= n_shelves:
        raise ConfigError(f"request_queue_size must be less than the number of shelves ({n_shelves}), because another "
                          f"shelf is requested after each delivery, got {task.request_queue_size}")  # fmt: skip
    if task.normalised_coordinates and min(floor.shape) < 2:
        raise ConfigError("normalised_coordinates requires at least two rows and two columns, got a layout of "
                          f"{floor.shape[0]} by {floor.shape[1]}")  # fmt: skip
    return floor, goals


def _regular_floor(task: Task) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Build blocks of shelves, two columns each, surrounded by highways, with a queue before the two goals."""
    height, width = (task.column_height + 1) * task.shelf_rows + 2, 3 * task.shelf_columns + 1
    y, x = np.indices((height, width))
    left, right = width // 2 - 1, width // 2
    is_queue = (y > height - (task.column_height + 3)) & ((x == left) | (x == right))
    is_highway = (x % 3 == 0) | (y % (task.column_height + 1) == 0) | (y == height - 1) | is_queue
    return np.where(is_highway, HIGHWAY, STORAGE).astype(np.uint8), [(left, height - 1), (right, height - 1)]


def _drawn_floor(layout: str) -> tuple[np.ndarray, list[tuple[int, int]]]:
    lines = layout.strip().replace(" ", "").lower().split("\n")
    if len({len(line) for line in lines}) > 1 or set("".join(lines)) - set("gx."):
        raise ConfigError(
            f"layout must be lines of equal length with the letters g (goal), x (shelf) and ., got {layout!r}"
        )
    goals = [(x, y) for y, line in enumerate(lines) for x, letter in enumerate(line) if letter == "g"]
    if not goals:
        raise ConfigError(f"layout must contain a goal (the letter g), got {layout!r}")
    return np.array([[STORAGE if letter == "x" else HIGHWAY for letter in line] for line in lines], np.uint8), goals
