"""A grid world with food and wandering hazards, in which agents may die before the episode ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numba import njit

from fastmarl.core.envs.arrays import StepArrays
from fastmarl.core.errors import ConfigError
from fastmarl.core.objects.public import public
from fastmarl.envs.own_arrays import ANY, COUNT, EnvOfArrays
from fastmarl.envs.streams import below, draw_zero, new_streams, seed_streams

WALL, FOOD, HAZARD, AGENT = 1, 2, 4, 8  # contents of a cell: one of these, or 0
N_KINDS = 4
STAY, UP, DOWN, LEFT, RIGHT = range(5)
N_MOVES = 5


@public("fastmarl.envs")
class GridWorld(EnvOfArrays):
    """Agents gather food on a square grid and die on hazards.

    An episode starts with agents, hazards and food on distinct cells, sampled in this order. In each step

    1. the living agents move, one after the other: they stay, or go up, down, left or right (actions 0 to 4), unless a
       wall or another living agent is in the way. An agent that reaches food eats it for a reward of 1, and the food
       reappears immediately on a free cell. An agent that runs into a hazard dies, with a reward of -1.
    2. the hazards move, one after the other, each by one of the five moves sampled uniformly, unless a wall, food or
       another hazard is in the way. An agent hit by a hazard dies, with a reward of -1.

    Dead agents leave the grid; they are terminated and observed for the last time. The episode terminates when no agent
    is alive, and is otherwise truncated after `max_steps`.

    An observation is a Dict: "observation" float32, a square around the agent with sides of 2 * `view` + 1 cells, row
    by row, with four numbers per cell that are 1 for a wall, food, a hazard, and another living agent; "action_mask"
    int8 [5], 0 for moves against a wall or another living agent.

    Args:
        num_envs: Number of copies in the batch, E.
        num_agents: Number of agents, named "agent_0", ...
        size: Number of rows, and of columns.
        num_food: Number of cells with food at any time.
        num_hazards: Number of hazards.
        view: Number of cells that agents see in each direction.
        max_steps: Maximum number of steps of an episode.

    Raises:
        ConfigError: If a number is too small, or there are more agents, food and hazards than cells.
    """

    def __init__(
        self,
        num_envs: int,
        num_agents: int = 4,
        size: int = 10,
        num_food: int = 8,
        num_hazards: int = 3,
        view: int = 2,
        max_steps: int = 100,
    ):
        if min(num_agents, size, view, max_steps) < 1 or min(num_food, num_hazards) < 0:
            raise ConfigError("num_agents, size, view, max_steps must be >= 1 and num_food, num_hazards >= 0, got "
                              f"{num_agents}, {size}, {view}, {max_steps} and {num_food}, {num_hazards}")  # fmt: skip
        if num_agents + num_food + num_hazards > size**2:
            raise ConfigError(f"{num_agents} agents, {num_food} food and {num_hazards} hazards need one cell each, but "
                              f"there are only {size**2}")  # fmt: skip
        seen = gym.spaces.Box(0.0, 1.0, ((2 * view + 1) ** 2 * N_KINDS,), np.float32)
        observation_space = gym.spaces.Dict(
            {"observation": seen, "action_mask": gym.spaces.Box(0, 1, (N_MOVES,), np.int8)}
        )
        agents = {"agents": [f"agent_{i}" for i in range(num_agents)]}
        super().__init__(num_envs, agents, {"agents": observation_space}, {"agents": gym.spaces.Discrete(N_MOVES)})
        width = size + 2 * view  # surrounded by walls, so that everything an agent sees is in the array
        empty = np.full((width, width), WALL, np.uint8)
        empty[view:-view, view:-view] = 0
        self._empty_C = empty.reshape(-1)
        self._cells_EC = np.tile(self._empty_C, (num_envs, 1))
        self._agent_EA = np.zeros((num_envs, num_agents), np.int64)  # cells of the agents
        self._hazard_EH = np.zeros((num_envs, num_hazards), np.int64)
        self._lives_EA = np.zeros((num_envs, num_agents), np.bool_)
        self._t = np.zeros(num_envs, np.int64)
        self._moves = np.array([0, -width, width, -1, 1])
        self._num_food, self._view, self._max_steps = num_food, view, max_steps
        self._streams = new_streams(num_envs)
        cells = 0, width**2 - 1
        self.state_arrays = {"_cells_EC": (0, AGENT), "_agent_EA": cells, "_hazard_EH": cells, "_lives_EA": (0, 1),
                             "_t": COUNT, "_streams": ANY}  # fmt: skip

    def reset(self, env_indices: np.ndarray, out: StepArrays, *, seeds: Sequence[int] | None = None) -> None:
        seed_streams(self._streams, env_indices, seeds)
        obs = out.groups["agents"].obs
        _reset(
            env_indices, self._streams, self._empty_C, self._num_food, self._view, self._moves, self._cells_EC,
            self._agent_EA, self._hazard_EH, self._lives_EA, self._t, obs["observation"], obs["action_mask"],
        )  # fmt: skip

    def step(self, actions: dict[str, Any], out: StepArrays) -> None:
        group = out.groups["agents"]
        _step(
            actions["agents"], self._streams, self._view, self._max_steps, self._moves, self._cells_EC, self._agent_EA,
            self._hazard_EH, self._lives_EA, self._t, group.obs["observation"], group.obs["action_mask"],
            group.rewards, group.terminated, out.terminated, out.truncated,
        )  # fmt: skip

    def _rules_of(self, state: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
        cells_EC, lives_EA = state["_cells_EC"], state["_lives_EA"]
        is_wrong_EC = (cells_EC == WALL) != (self._empty_C == WALL)
        is_wrong_EC |= ~np.isin(cells_EC, (0, WALL, FOOD, HAZARD, AGENT))
        yield "walls are misplaced, or a cell has invalid contents", is_wrong_EC.any(1)
        for kind, thing_EX, exists_EX in (
            (AGENT, state["_agent_EA"], lives_EA),
            (HAZARD, state["_hazard_EH"], np.ones_like(state["_hazard_EH"], np.bool_)),
        ):
            is_there_EC = np.zeros_like(cells_EC, np.bool_)
            is_there_EC[np.nonzero(exists_EX)[0], thing_EX[exists_EX]] = True
            is_wrong_E = (is_there_EC != (cells_EC == kind)).any(1) | (is_there_EC.sum(1) != exists_EX.sum(1))
            yield "living agents and hazards are not on separate cells", is_wrong_E


@njit(cache=True, nogil=True)
def _reset(
    env_indices, streams_E, empty_C, num_food, view, moves, cells_EC, agent_EA, hazard_EH, lives_EA, t_E, seen_EAK,
    mask_EA5,
):  # fmt: skip
    for e in env_indices:
        t_E[e] = 0
        for c in range(len(empty_C)):
            cells_EC[e, c] = empty_C[c]
        for a in range(agent_EA.shape[1]):
            agent_EA[e, a] = _put(AGENT, e, streams_E, cells_EC)
            lives_EA[e, a] = True
        for h in range(hazard_EH.shape[1]):
            hazard_EH[e, h] = _put(HAZARD, e, streams_E, cells_EC)
        for _ in range(num_food):
            _put(FOOD, e, streams_E, cells_EC)
        for a in range(agent_EA.shape[1]):
            _observe(e, a, view, moves, cells_EC, agent_EA, seen_EAK, mask_EA5)


@njit(cache=True, nogil=True)
def _step(
    action_EA, streams_E, view, max_steps, moves, cells_EC, agent_EA, hazard_EH, lives_EA, t_E, seen_EAK, mask_EA5,
    reward_EA, terminated_EA, terminated_E, truncated_E,
):  # fmt: skip
    """Step all envs. The caller allocates the last six arrays and sets rewards and flags to 0."""
    for e in range(len(t_E)):
        for a in range(agent_EA.shape[1]):
            if lives_EA[e, a]:
                terminated_EA[e, a] = _go(e, a, action_EA[e, a], streams_E, moves, cells_EC, agent_EA, reward_EA)
        _wander(e, streams_E, moves, cells_EC, agent_EA, hazard_EH, lives_EA, reward_EA, terminated_EA)
        all_ended = True
        for a in range(agent_EA.shape[1]):
            if lives_EA[e, a]:
                _observe(e, a, view, moves, cells_EC, agent_EA, seen_EAK, mask_EA5)
                lives_EA[e, a] = not terminated_EA[e, a]
                all_ended &= terminated_EA[e, a]
        t_E[e] += 1
        terminated_E[e] = all_ended
        truncated_E[e] = t_E[e] >= max_steps and not all_ended


@njit(cache=True, nogil=True)
def _go(e, a, action, streams_E, moves, cells_EC, agent_EA, reward_EA):
    """Move one agent and return whether it dies."""
    here = agent_EA[e, a]
    there = here + moves[action] if STAY < action <= RIGHT else here
    found = cells_EC[e, there]
    if there == here or found & (WALL | AGENT):
        return False
    cells_EC[e, here] = 0
    agent_EA[e, a] = there
    if found == HAZARD:
        reward_EA[e, a] -= 1.0
        return True
    cells_EC[e, there] = AGENT
    if found == FOOD:
        reward_EA[e, a] += 1.0
        _put(FOOD, e, streams_E, cells_EC)
    return False


@njit(cache=True, nogil=True)
def _wander(e, streams_E, moves, cells_EC, agent_EA, hazard_EH, lives_EA, reward_EA, terminated_EA):
    """Move the hazards and kill the agents that they hit."""
    for h in range(hazard_EH.shape[1]):
        here = hazard_EH[e, h]
        there = here + moves[below(streams_E, e, N_MOVES)]
        found = cells_EC[e, there]
        if found & (WALL | FOOD | HAZARD):
            continue
        cells_EC[e, here], cells_EC[e, there] = 0, HAZARD
        hazard_EH[e, h] = there
        if found == AGENT:
            for a in range(agent_EA.shape[1]):
                if agent_EA[e, a] == there and lives_EA[e, a] and not terminated_EA[e, a]:
                    reward_EA[e, a] -= 1.0
                    terminated_EA[e, a] = True


@njit(cache=True, nogil=True)
def _put(kind, e, streams_E, cells_EC):
    """Put something on a uniformly sampled free cell of env e and return the cell."""
    c = draw_zero(streams_E, e, cells_EC[e])
    cells_EC[e, c] = kind
    return c


@njit(cache=True, nogil=True)
def _observe(e, a, view, moves, cells_EC, agent_EA, seen_EAK, mask_EA5):
    """Write the surroundings and legal moves of the agent."""
    here, width = agent_EA[e, a], moves[DOWN]
    k = 0
    for row in range(-view, view + 1):
        for c in range(here + row * width - view, here + row * width + view + 1):
            found = cells_EC[e, c]
            seen_EAK[e, a, k] = found == WALL
            seen_EAK[e, a, k + 1] = found == FOOD
            seen_EAK[e, a, k + 2] = found == HAZARD
            seen_EAK[e, a, k + 3] = found == AGENT and c != here
            k += N_KINDS
    for move in range(N_MOVES):
        mask_EA5[e, a, move] = move == STAY or cells_EC[e, here + moves[move]] & (WALL | AGENT) == 0
