"""`fastmarl.envs.gridworld` in dicts and sets, and its random numbers in plain Python."""

import gymnasium as gym
import numpy as np

import fastmarl

MOVES = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]  # (rows, columns)


class SplitMix64:
    """`fastmarl.envs.streams` for one env."""

    def __init__(self, seed):
        self.state = 0
        self.state = self.next(seed)

    def next(self, state=None):
        self.state = ((self.state if state is None else state) + 0x9E3779B97F4A7C15) % 2**64
        bits = self.state
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
        return bits ^ (bits >> 31)

    def uniform(self, low, high):
        return low + (high - low) * ((self.next() >> 11) * 2.0**-53)

    def below(self, n):
        return (self.next() >> 32) * n >> 32


class PlainGridWorld(fastmarl.MultiAgentEnv):
    def __init__(self, config):
        defaults = {"num_agents": 4, "size": 10, "num_food": 8, "num_hazards": 3, "view": 2, "max_steps": 100}
        self.__dict__.update(defaults | config)
        self.possible_agents = [f"agent_{i}" for i in range(self.num_agents)]
        seen = gym.spaces.Box(0, 1, ((2 * self.view + 1) ** 2 * 4,), np.float32)
        self.observation_space = gym.spaces.Dict(
            {"observation": seen, "action_mask": gym.spaces.Box(0, 1, (5,), np.int8)}
        )
        self.action_space = gym.spaces.Discrete(5)
        self.random = SplitMix64(0)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.random = SplitMix64(seed)
        self.t = 0
        self.living, self.hazards, self.food = {}, [], set()
        for agent in self.possible_agents:
            self.living[agent] = self.free_cell()
        for _ in range(self.num_hazards):
            self.hazards.append(self.free_cell())
        for _ in range(self.num_food):
            self.food.add(self.free_cell())
        return {agent: self.observation(cell) for agent, cell in self.living.items()}, {}

    def step(self, actions):
        rewards = dict.fromkeys(self.living, 0.0)
        cells = dict(self.living)  # where they are in the end, living or dead
        for agent, cell in list(self.living.items()):
            target = self.moved(cell, actions[agent])
            if self.is_wall(target) or target in self.living.values():
                continue
            self.living[agent] = cells[agent] = target
            if target in self.hazards:
                del self.living[agent]
                rewards[agent] -= 1
            elif target in self.food:
                rewards[agent] += 1
                self.food.remove(target)
                self.food.add(self.free_cell())
        for i, hazard in enumerate(self.hazards):
            target = self.moved(hazard, self.random.below(5))
            if self.is_wall(target) or target in self.food or target in self.hazards:
                continue
            self.hazards[i] = target
            for agent in [agent for agent, cell in self.living.items() if cell == target]:
                del self.living[agent]
                rewards[agent] -= 1
        self.t += 1
        obs = {agent: self.observation(cell) for agent, cell in cells.items()}
        terminateds = {**{agent: agent not in self.living for agent in cells}, "__all__": not self.living}
        truncateds = {"__all__": self.t == self.max_steps and bool(self.living)}
        return obs, rewards, terminateds, truncateds, {}

    def moved(self, cell, move):
        return cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]

    def is_wall(self, cell):
        return not (0 <= cell[0] < self.size and 0 <= cell[1] < self.size)

    def free_cell(self):
        taken = {*self.living.values(), *self.hazards, *self.food}
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        free = [cell for cell in cells if cell not in taken]
        return free[self.random.below(len(free))]

    def observation(self, cell):
        seen = []
        for row in range(cell[0] - self.view, cell[0] + self.view + 1):
            for column in range(cell[1] - self.view, cell[1] + self.view + 1):
                there = row, column
                other = there != cell and there in self.living.values()
                seen += [self.is_wall(there), there in self.food, there in self.hazards, other]
        targets = [self.moved(cell, move) for move in range(5)]
        mask = [t == cell or not (self.is_wall(t) or t in self.living.values()) for t in targets]
        return {"observation": np.array(seen, np.float32), "action_mask": np.array(mask, np.int8)}
