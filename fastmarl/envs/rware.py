"""Robots that bring shelves to the goals of a warehouse, as in the package `rware`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numba import njit

from fastmarl.core.envs.arrays import StepArrays
from fastmarl.core.objects.public import public
from fastmarl.envs.own_arrays import ANY, COUNT, EnvOfArrays
from fastmarl.envs.rware_moves import choose_movers, count_followers, new_aims, rank_cells
from fastmarl.envs.rware_tasks import OUTSIDE, STORAGE, Task, floor_of, task_named
from fastmarl.envs.streams import below, draw_zero, new_streams, seed_streams

FORWARD, LEFT, RIGHT, TOGGLE_LOAD = 1, 2, 3, 4  # actions; 0 does nothing
N_ACTIONS, N_DIRECTIONS = 5, 4
# Directions are up, down, left, right, as in `rware`; these are the directions after a turn.
LEFT_OF, RIGHT_OF = (2, 3, 1, 0), (3, 2, 0, 1)
GLOBAL, INDIVIDUAL, TWO_STAGE = range(3)
N_OF_SELF, N_OF_CELL = 8, 7  # elements of an observation: for the robot, and for each cell without messages


class Floor(NamedTuple):
    """The fixed parts of a warehouse. Cells are numbered row by row, including a margin as wide as the sensor range.

    Attributes:
        kind_C: uint8, OUTSIDE, HIGHWAY or STORAGE.
        place_C2: float32, x and y as observed by a robot in the cell.
        storage_S: int64, initial cells of the shelves, in ascending order.
        goal_G: int64, cells of the goals.
        steps: int64 [4], offset to the neighbouring cell in each direction.
        window_K: int64, offsets from the cell of a robot to the cells it sees.
    """

    kind_C: np.ndarray
    place_C2: np.ndarray
    storage_S: np.ndarray
    goal_G: np.ndarray
    steps: np.ndarray
    window_K: np.ndarray


class Things(NamedTuple):
    """The moving parts of the warehouses. In arrays where 0 means none, robots and shelves are numbered from 1.

    Attributes:
        agent_at_EC, shelf_at_EC: int32, the robot and the shelf in a cell.
        cell_EA, direction_EA: int64, cell and direction of each robot.
        load_EA: int32, the shelf carried by a robot.
        has_delivered_EA: bool, True if a robot has brought its load to a goal.
        message_EAM: float32, the message of a robot in this step.
        is_requested_ES: bool, True for requested shelves.
    """

    agent_at_EC: np.ndarray
    shelf_at_EC: np.ndarray
    cell_EA: np.ndarray
    direction_EA: np.ndarray
    load_EA: np.ndarray
    has_delivered_EA: np.ndarray
    message_EAM: np.ndarray
    is_requested_ES: np.ndarray


@public("fastmarl.envs")
class Warehouse(EnvOfArrays):
    """Robots fetch requested shelves, bring them to a goal, and put them back anywhere.

    Dynamics, spaces, rewards and terminations match the package `rware` 2.0.0 with flattened observations, including
    the precedence of robots that want to enter the same cell. Episodes end by termination, even at a time limit.

    An episode starts with robots on distinct cells, facing in any direction, and with some shelves requested, all
    sampled in this order. After a delivery, another shelf is sampled uniformly from the shelves not requested.

    Args:
        num_envs: Number of copies in the batch, E.
        name: A task of `rware`, such as "rware-small-4ag-hard-v2".
        options: Changes to the task, with the names used by `rware`: `n_agents`, numbered 0, 1, ...; `shelf_columns`,
            `shelf_rows`, `column_height`, or `layout`, a text with the letters g (goal), x (shelf) and . (highway);
            `request_queue_size`; `sensor_range`, the number of cells visible in each direction; `msg_bits`, the bits
            sent by each robot to the robots that see it; `reward_type` ("individual", "global" or "two_stage");
            `max_steps`, and `max_inactivity_steps` without a delivery, after which an episode is over, or None;
            `normalised_coordinates`.

    Raises:
        ConfigError: If the task does not exist, an option is invalid, or there is no room for this many robots or
            requests.
        TypeError: If an option is unknown.
    """

    def __init__(self, num_envs: int, name: str = "rware-tiny-2ag-v2", **options: Any):
        self.task = task = task_named(name, options)
        n_numbers = N_OF_SELF + (2 * task.sensor_range + 1) ** 2 * (N_OF_CELL + task.msg_bits)
        observation_space = gym.spaces.Box(-np.inf, np.inf, (n_numbers,), np.float32)
        action_space: gym.Space = gym.spaces.Discrete(N_ACTIONS)
        if task.msg_bits:
            action_space = gym.spaces.MultiDiscrete([N_ACTIONS] + task.msg_bits * [2])
        super().__init__(num_envs, {"robots": range(task.n_agents)}, {"robots": observation_space},
                         {"robots": action_space})  # fmt: skip
        self._floor, hash_C = _numbered(task)
        self._aims = new_aims(task.n_agents, self._floor.steps, hash_C)
        EC, EA = (num_envs, len(self._floor.kind_C)), (num_envs, task.n_agents)
        self._agent_at_EC, self._shelf_at_EC = np.zeros((2, *EC), np.int32)
        self._cell_EA, self._direction_EA = np.zeros((2, *EA), np.int64)
        self._load_EA, self._has_delivered_EA = np.zeros(EA, np.int32), np.zeros(EA, np.bool_)
        self._message_EAM = np.zeros((*EA, task.msg_bits), np.float32)
        self._is_requested_ES = np.zeros((num_envs, len(self._floor.storage_S)), np.bool_)
        self._things = Things(*(getattr(self, f"_{field}") for field in Things._fields))
        self._t, self._idle = np.zeros((2, num_envs), np.int64)  # env steps in total, and since the last delivery
        self._limits = task.max_steps or -1, task.max_inactivity_steps or -1
        self._reward_type = {"global": GLOBAL, "individual": INDIVIDUAL, "two_stage": TWO_STAGE}[task.reward_type]
        self._streams = new_streams(num_envs)
        n_shelves = len(self._floor.storage_S)
        self.state_arrays = {
            "_agent_at_EC": (0, task.n_agents), "_shelf_at_EC": (0, n_shelves), "_cell_EA": (0, EC[1] - 1),
            "_direction_EA": (0, N_DIRECTIONS - 1), "_load_EA": (0, n_shelves), "_has_delivered_EA": (0, 1),
            "_message_EAM": ANY, "_is_requested_ES": (0, 1), "_t": COUNT, "_idle": COUNT, "_streams": ANY,
        }  # fmt: skip

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        seed_streams(self._streams, env_indices, seeds)
        _reset(
            env_indices, self._streams, self.task.request_queue_size, self._floor, self._things, self._t, self._idle,
            out.groups["robots"].obs,
        )  # fmt: skip

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        group = out.groups["robots"]
        action_EAN = actions["robots"].reshape(*self._cell_EA.shape, 1 + self.task.msg_bits)
        _step(
            action_EAN, self._streams, self._limits, self._reward_type, self._floor, self._aims, self._things,
            self._t, self._idle, group.obs, group.rewards, out.terminated,
        )  # fmt: skip

    def _rules_of(self, state: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
        envs, kind_C = np.arange(self.num_envs)[:, None], self._floor.kind_C
        agent_at_EC, shelf_at_EC, cell_EA, load_EA = (
            state[name] for name in ("_agent_at_EC", "_shelf_at_EC", "_cell_EA", "_load_EA")
        )
        robots, shelves = np.arange(1, cell_EA.shape[1] + 1), np.arange(1, len(self._floor.storage_S) + 1)
        is_lost_EA = (agent_at_EC[envs, cell_EA] != robots) | (kind_C[cell_EA] == OUTSIDE)
        are_more_E = (agent_at_EC > 0).sum(1) != len(robots)
        yield "robots are not on separate cells", is_lost_EA.any(1) | are_more_E
        standing_ES = np.sort(shelf_at_EC, axis=1)[:, len(kind_C) - len(shelves) :]
        are_more_E = (shelf_at_EC > 0).sum(1) != len(shelves)
        yield "shelves are not on separate cells", (standing_ES != shelves).any(1) | are_more_E
        carried_EC = np.where(agent_at_EC > 0, load_EA[envs, agent_at_EC - 1], 0)
        is_lost_EC = (shelf_at_EC > 0) & (kind_C != STORAGE) & (carried_EC != shelf_at_EC)
        is_lost_EC |= (carried_EC > 0) & (carried_EC != shelf_at_EC)
        yield "a shelf is neither in storage nor on the robot that carries it", is_lost_EC.any(1)
        n_E, n = state["_is_requested_ES"].sum(1), self.task.request_queue_size
        yield f"the number of requested shelves is not {n}", n_E != n


def _numbered(task: Task) -> tuple[Floor, np.ndarray]:
    """Return the floor of a task, and the Python hash of (x, y) of each cell."""
    kinds, goals = floor_of(task)
    margin = max(task.sensor_range, 1)  # at least 1, so that every neighbour of a cell has a number
    kind = np.pad(kinds, margin, constant_values=OUTSIDE)
    width = kind.shape[1]
    y, x = np.indices(kind.shape) - margin
    longest = np.array(kinds.shape[::-1]) - 1 if task.normalised_coordinates else 1
    place = (np.stack([x, y], -1) / longest).astype(np.float32).reshape(-1, 2)
    sight = np.arange(-task.sensor_range, task.sensor_range + 1)
    hash_C = np.array([hash(cell) % 2**64 for cell in zip(x.flat, y.flat, strict=True)], np.uint64)
    floor = Floor(
        kind.reshape(-1),
        place,
        np.flatnonzero(kind == STORAGE),
        np.array([(y + margin) * width + x + margin for x, y in goals]),
        np.array([-width, width, -1, 1]),
        (sight[:, None] * width + sight).reshape(-1),
    )
    return floor, hash_C


@njit(cache=True, nogil=True)
def _reset(env_indices, streams_E, n_requests, floor, things, t_E, idle_E, obs_EAK):
    for e in env_indices:
        t_E[e] = idle_E[e] = 0
        things.agent_at_EC[e] = 0
        things.shelf_at_EC[e] = 0
        for s in range(len(floor.storage_S)):
            things.shelf_at_EC[e, floor.storage_S[s]] = s + 1
        things.load_EA[e] = 0
        things.has_delivered_EA[e] = False
        things.message_EAM[e] = 0
        for a in range(things.cell_EA.shape[1]):
            cell = _free_cell(e, streams_E, floor, things)
            things.cell_EA[e, a] = cell
            things.agent_at_EC[e, cell] = a + 1
        for a in range(things.cell_EA.shape[1]):
            things.direction_EA[e, a] = below(streams_E, e, N_DIRECTIONS)
        things.is_requested_ES[e] = False
        for _ in range(n_requests):
            things.is_requested_ES[e, draw_zero(streams_E, e, things.is_requested_ES[e])] = True
        _observe(e, floor, things, obs_EAK)


@njit(cache=True, nogil=True)
def _step(
    action_EAN, streams_E, limits, reward_type, floor, aims, things, t_E, idle_E, obs_EAK, reward_EA, terminated_E
):
    """Step all envs.

    Functions called for each env must not call large functions themselves, because numba would count references to all
    arrays in each of these calls.

    Args:
        action_EAN: int64 [E, A, 1 + M], actions and messages of the robots.
        limits: Number of env steps, and of steps without a delivery, after which an episode is over; -1 for no limit.
        obs_EAK, reward_EA, terminated_E: Output arrays of the caller, with rewards and flags initially 0.
    """
    for e in range(len(t_E)):
        _aim(e, action_EAN, floor, aims, things)
        count_followers(e, things.agent_at_EC, aims)
        if choose_movers(e, things.cell_EA, things.agent_at_EC, aims):
            rank_cells(e, things.cell_EA, things.agent_at_EC, aims)
            count_followers(e, things.agent_at_EC, aims)
            choose_movers(e, things.cell_EA, things.agent_at_EC, aims)
        _move(e, aims, things)
        _turn_and_load(e, action_EAN, reward_type, floor, things, reward_EA)
        t_E[e] += 1
        idle_E[e] = 0 if _deliver(e, streams_E, reward_type, floor, things, reward_EA) else idle_E[e] + 1
        terminated_E[e] = t_E[e] == limits[0] or idle_E[e] == limits[1]
        _observe(e, floor, things, obs_EAK)


@njit(cache=True, nogil=True)
def _aim(e, action_EAN, floor, aims, things):
    """Record the messages and targets of robots. A loaded robot never targets a cell with a standing shelf."""
    for a in range(things.cell_EA.shape[1]):
        for m in range(things.message_EAM.shape[2]):
            things.message_EAM[e, a, m] = action_EAN[e, a, 1 + m]
        here = things.cell_EA[e, a]
        there = here + floor.steps[things.direction_EA[e, a]]
        other = things.agent_at_EC[e, there]
        is_standing = things.shelf_at_EC[e, there] > 0 and (other == 0 or things.load_EA[e, other - 1] == 0)
        can_go = floor.kind_C[there] != OUTSIDE and not (things.load_EA[e, a] > 0 and is_standing)
        aims.target_A[a] = there if action_EAN[e, a, 0] == FORWARD and can_go else here


@njit(cache=True, nogil=True)
def _move(e, aims, things):
    """Move robots and their loads. All of them leave their cells before any of them enters a new one."""
    for a in range(things.cell_EA.shape[1]):
        if aims.moves_A[a]:
            here = things.cell_EA[e, a]
            things.agent_at_EC[e, here] = 0
            if things.load_EA[e, a] > 0:
                things.shelf_at_EC[e, here] = 0
    for a in range(things.cell_EA.shape[1]):
        if aims.moves_A[a]:
            there = aims.target_A[a]
            things.cell_EA[e, a] = there
            things.agent_at_EC[e, there] = a + 1
            if things.load_EA[e, a] > 0:
                things.shelf_at_EC[e, there] = things.load_EA[e, a]


@njit(cache=True, nogil=True)
def _turn_and_load(e, action_EAN, reward_type, floor, things, reward_EA):
    """Turn robots, and let them pick up the shelf in their cell or put down their load where shelves may stand."""
    for a in range(things.cell_EA.shape[1]):
        action, cell = action_EAN[e, a, 0], things.cell_EA[e, a]
        if action == LEFT:
            things.direction_EA[e, a] = LEFT_OF[things.direction_EA[e, a]]
        elif action == RIGHT:
            things.direction_EA[e, a] = RIGHT_OF[things.direction_EA[e, a]]
        elif action == TOGGLE_LOAD and things.load_EA[e, a] == 0:
            things.load_EA[e, a] = things.shelf_at_EC[e, cell]
        elif action == TOGGLE_LOAD and floor.kind_C[cell] == STORAGE:
            things.load_EA[e, a] = 0
            if things.has_delivered_EA[e, a] and reward_type == TWO_STAGE:
                reward_EA[e, a] += 0.5
            things.has_delivered_EA[e, a] = False


@njit(cache=True, nogil=True)
def _deliver(e, streams_E, reward_type, floor, things, reward_EA):
    """Reward deliveries of requested shelves, request other shelves, and return whether there were any deliveries."""
    has_delivered = False
    for g in range(len(floor.goal_G)):
        s = things.shelf_at_EC[e, floor.goal_G[g]] - 1
        if s < 0 or not things.is_requested_ES[e, s]:
            continue
        has_delivered = True
        new = draw_zero(streams_E, e, things.is_requested_ES[e])
        things.is_requested_ES[e, s] = False
        things.is_requested_ES[e, new] = True
        deliverer = things.agent_at_EC[e, floor.goal_G[g]] - 1
        things.has_delivered_EA[e, deliverer] = True
        for a in range(things.cell_EA.shape[1]):
            if reward_type == GLOBAL or a == deliverer:
                reward_EA[e, a] += 0.5 if reward_type == TWO_STAGE else 1.0
    return has_delivered


@njit(cache=True, nogil=True)
def _free_cell(e, streams_E, floor, things):
    """Return a uniformly sampled cell without a robot."""
    n_free = 0
    for c in range(len(floor.kind_C)):
        n_free += floor.kind_C[c] != OUTSIDE and things.agent_at_EC[e, c] == 0
    left = below(streams_E, e, n_free)
    for c in range(len(floor.kind_C)):
        if floor.kind_C[c] != OUTSIDE and things.agent_at_EC[e, c] == 0:
            if left == 0:
                return c
            left -= 1
    return -1


@njit(cache=True, nogil=True)
def _observe(e, floor, things, obs_EAK):
    """Write observations: place, load and direction of the robot, whether it is on a highway, and the cells in sight.

    The numbers of a cell are the robot there, its direction and messages, the shelf there, and whether it is requested.
    """
    n_messages = things.message_EAM.shape[2]
    for a in range(things.cell_EA.shape[1]):
        for k in range(obs_EAK.shape[2]):
            obs_EAK[e, a, k] = 0.0
        here = things.cell_EA[e, a]
        obs_EAK[e, a, 0], obs_EAK[e, a, 1] = floor.place_C2[here, 0], floor.place_C2[here, 1]
        obs_EAK[e, a, 2] = things.load_EA[e, a] > 0
        obs_EAK[e, a, 3 + things.direction_EA[e, a]] = 1.0
        obs_EAK[e, a, 7] = floor.kind_C[here] != STORAGE
        k = N_OF_SELF
        for i in range(len(floor.window_K)):
            cell = here + floor.window_K[i]
            other, s = things.agent_at_EC[e, cell] - 1, things.shelf_at_EC[e, cell] - 1
            obs_EAK[e, a, k] = other >= 0
            obs_EAK[e, a, k + 1 + (things.direction_EA[e, other] if other >= 0 else 0)] = 1.0
            for m in range(n_messages):
                obs_EAK[e, a, k + 5 + m] = things.message_EAM[e, other, m] if other >= 0 else 0.0
            k += 5 + n_messages
            obs_EAK[e, a, k] = s >= 0
            obs_EAK[e, a, k + 1] = s >= 0 and things.is_requested_ES[e, s]
            k += 2
