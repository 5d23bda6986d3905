"""A meadow where hares eat clover and a fox hunts them: a PettingZoo environment with masks and agents that die."""

from typing import ClassVar

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv
from sprites import draw

ROCK, CLOVER, HARE, FOX = range(4)  # layers of the map
MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])  # stay, up, down, left, right
SIGHT = 3  # cells in each direction


class Meadow(ParallelEnv):
    """Hares get 1 for a clover and -5 when the fox catches them, which ends their life; clover grows back elsewhere."""

    metadata: ClassVar = {"name": "meadow_v0", "render_modes": ["rgb_array"], "render_fps": 8}

    def __init__(self, size: int = 12, num_hares: int = 4, num_clovers: int = 12, length: int = 100,
                 render_mode: str | None = None):  # fmt: skip
        self.size, self.num_clovers, self.length, self.render_mode = size, num_clovers, length, render_mode
        self.possible_agents = [f"hare_{k}" for k in range(num_hares)]
        window = Box(0, num_hares, (4 * (2 * SIGHT + 1) ** 2,), np.float32)
        mask = Box(0, 1, (len(MOVES),), np.int8)
        self._observation_space = Dict({"observation": window, "action_mask": mask})
        self._action_space = Discrete(len(MOVES))
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Dict:
        return self._observation_space

    def action_space(self, agent: str) -> Discrete:
        return self._action_space

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        edge = self.size + 2 * SIGHT
        self._map = np.zeros((4, edge, edge), np.float32)
        self._map[ROCK] = 1  # a border around the meadow, so that each window lies on the map
        self._map[ROCK, SIGHT:-SIGHT, SIGHT:-SIGHT] = self._rng.random((self.size, self.size)) < 0.1
        self.agents = list(self.possible_agents)
        self._places = {hare: self._put(HARE) for hare in self.agents}
        self._fox = self._put(FOX)
        for _ in range(self.num_clovers):
            self._put(CLOVER)
        self._t = 0
        return self._observations(), {hare: {} for hare in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        """Move the hares as their masks allow; then the fox follows, but rests in every third step."""
        self._t += 1
        rewards = dict.fromkeys(self.agents, 0.0)
        for hare, action in actions.items():
            self._places[hare] = place = self._move(HARE, self._places[hare], action)
            if self._map[CLOVER][place]:
                self._map[CLOVER][place] = 0
                self._put(CLOVER)
                rewards[hare] += 1
        if self._t % 3:
            self._hunt()
        caught = {hare: self._places[hare] == self._fox for hare in self.agents}
        for hare in self.agents:
            if caught[hare]:
                rewards[hare] -= 5
                self._map[HARE][self._places[hare]] -= 1
        over = dict.fromkeys(self.agents, self._t == self.length)
        results = self._observations(), rewards, caught, over, {hare: {} for hare in self.agents}
        self.agents = [hare for hare in self.agents if not (caught[hare] or over[hare])]
        return results

    def _put(self, layer: int) -> tuple[int, int]:
        """Add one to a random free cell; returns the cell."""
        free = np.argwhere(self._map.sum(0) == 0)
        y, x = self._rng.choice(free)
        self._map[layer, y, x] = 1
        return int(y), int(x)

    def _move(self, layer: int, place: tuple[int, int], action: int) -> tuple[int, int]:
        y, x = place
        self._map[layer, y, x] -= 1
        y, x = y + int(MOVES[action][0]), x + int(MOVES[action][1])
        self._map[layer, y, x] += 1
        return y, x

    def _mask(self, place: tuple[int, int]) -> np.ndarray:
        ys, xs = (MOVES + place).T
        return (self._map[ROCK, ys, xs] == 0).astype(np.int8)

    def _hunt(self) -> None:
        """Move the fox towards the nearest hare; it never takes a step back, so rocks may stop it."""
        legal = np.flatnonzero(self._mask(self._fox))
        hares = np.array([self._places[hare] for hare in self.agents])
        distances = np.abs((MOVES[legal] + self._fox)[:, None] - hares).sum(-1).min(1)
        best = legal[distances == distances.min()]
        self._fox = self._move(FOX, self._fox, int(self._rng.choice(best)))

    def _observations(self) -> dict[str, dict[str, np.ndarray]]:
        """Return each hare's window of the map, and the mask of its legal moves."""
        found = {}
        for hare in self.agents:
            y, x = self._places[hare]
            window = self._map[:, y - SIGHT : y + SIGHT + 1, x - SIGHT : x + SIGHT + 1]
            found[hare] = {"observation": window.ravel(), "action_mask": self._mask((y, x))}
        return found

    def render(self) -> np.ndarray:
        """Return a picture of the meadow, uint8 [height, width, 3]."""
        return draw(self._map[:, SIGHT:-SIGHT, SIGHT:-SIGHT])
