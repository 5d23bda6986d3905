"""The package `rware` as an oracle: its warehouses with a compiled batch's random numbers, and robots that deliver."""

import functools
import warnings

import networkx as nx
import numpy as np
from rware.warehouse import Action, Direction, RewardType, Warehouse

from fastmarl.core.envs.gymnasium_joint import TupleGymnasiumEnv
from support.gridworld import SplitMix64

STEPS = {Direction.UP: (0, -1), Direction.DOWN: (0, 1), Direction.LEFT: (-1, 0), Direction.RIGHT: (1, 0)}
FAR = 1000
CLOCKWISE = [Direction.UP, Direction.RIGHT, Direction.DOWN, Direction.LEFT]


class Draws:
    """The part of NumPy's generators that `rware` uses, from a stream of `fastmarl.envs.streams`."""

    def __init__(self, seed):
        self.random = SplitMix64(seed)

    def choice(self, things, size=None, replace=True):
        if size is None:
            return things[self.random.below(len(things))]
        left = list(things)
        if replace:
            return [left[self.random.below(len(left))] for _ in range(size)]
        return [left.pop(self.random.below(len(left))) for _ in range(size)]


def original(task):
    """`rware`'s warehouse with the options of a `Task`, in the multi-agent protocol."""
    options = {name: value for name, value in vars(task).items() if name != "observation_type"}
    options["reward_type"] = RewardType[task.reward_type.upper()]
    with warnings.catch_warnings():  # Gymnasium's, of the bounds of normalised coordinates
        warnings.filterwarnings("ignore", ".*precision lowered by casting")
        return TupleGymnasiumEnv(Warehouse(**options))


def begin(e, env, seed):
    """Begin an episode with the batch's random numbers, for `support.twins.Twins`."""
    if seed is not None:
        env.unwrapped._np_random = Draws(seed)
    return env.reset()[0]


class Workers:
    """Robots that fetch requested shelves, bring them to a goal and put them down on any free place.

    Args:
        noise: share of random actions.
    """

    def __init__(self, env, rng, noise):
        self.env, self.rng, self.noise = env.unwrapped, rng, noise
        self.detours = {}  # by robot: where it goes, for how long, where it is if it goes forward
        self.distances = functools.cache(self._distances)

    def act(self, i):
        """The action of robot i, with messages if there are any."""
        bits = self.rng.integers(0, 2, self.env.msg_bits).tolist()
        is_random = self.rng.random() < self.noise
        action = int(self.rng.integers(5)) if is_random else self._unblocked(i).value
        return np.array([action, *bits]) if bits else action

    def _unblocked(self, i):
        """Who could not go on goes another way for three steps."""
        robot = self.env.agents[i]
        way, n_left, stuck_at = self.detours.get(i, (None, 0, None))
        if stuck_at == (robot.x, robot.y):
            way, n_left = self.rng.choice(list(STEPS)), 3
        action = towards(robot, way) if n_left else self._next(robot)
        self.detours[i] = way, max(n_left - 1, 0), (robot.x, robot.y) if action == Action.FORWARD else None
        return action

    def _next(self, robot):
        env, x, y, load = self.env, int(robot.x), int(robot.y), robot.carrying_shelf
        if load is None:
            targets = [(int(shelf.x), int(shelf.y)) for shelf in env.request_queue]
        elif load in env.request_queue:
            targets = env.goals
        else:
            is_free = (env.highways == 0) & ((env.grid[1] == 0) | (env.grid[1] == load.id))  # or its own shelf's place
            targets = [(int(column), int(row)) for row, column in np.argwhere(is_free)]
        if not targets or (x, y) in targets:
            return Action.TOGGLE_LOAD
        maps = [self.distances(target, load is not None) for target in targets]
        nearest = min(maps, key=lambda distances: distances.get((x, y), FAR))
        return towards(robot, min(STEPS, key=lambda way: nearest.get((x + STEPS[way][0], y + STEPS[way][1]), FAR)))

    def _distances(self, target, with_load):
        """Steps to the target by cell, along highways for robots with a load."""
        distances, found = {target: 0}, [target]
        for x, y in found:
            for dx, dy in STEPS.values():
                near = x + dx, y + dy
                inside = 0 <= near[0] < self.env.grid_size[1] and 0 <= near[1] < self.env.grid_size[0]
                if inside and near not in distances:
                    distances[near] = distances[x, y] + 1
                    if not with_load or self.env.highways[near[1], near[0]]:
                        found.append(near)
        return distances


class Whirls(Workers):
    """Robots that go round in squares of two by two cells, clockwise, and wait where they are blocked."""

    def _unblocked(self, i):
        robot = self.env.agents[i]
        ways = {(0, 0): Direction.RIGHT, (1, 0): Direction.DOWN, (1, 1): Direction.LEFT, (0, 1): Direction.UP}
        return towards(robot, ways[int(robot.x) % 2, int(robot.y) % 2])


def towards(robot, way):
    """The action of a robot that wants to go up, down, left or right."""
    turns = (CLOCKWISE.index(way) - CLOCKWISE.index(robot.dir)) % 4
    return (Action.FORWARD, Action.RIGHT, Action.RIGHT, Action.LEFT)[turns]


class Encounters:
    """Counts of what robots that were in each other's way did, in the originals that step meanwhile.

    Attributes:
        circles: of three or more robots, which moved.
        swaps: of two, which did not.
        longest: robots in the longest chain that moved.
        contests: chains that wanted to enter another's cell, and stayed.
    """

    def __init__(self, monkeypatch):
        self.circles = self.swaps = self.longest = self.contests = 0
        self.find_cycle, self.longest_path = nx.algorithms.find_cycle, nx.algorithms.dag_longest_path
        monkeypatch.setattr(nx.algorithms, "find_cycle", self._find_cycle)
        monkeypatch.setattr(nx.algorithms, "dag_longest_path", self._longest_path)

    def _find_cycle(self, graph):
        cycle = self.find_cycle(graph)
        self.swaps += len(cycle) == 2
        self.circles += len(cycle) > 2
        return cycle

    def _longest_path(self, graph):
        path = self.longest_path(graph)
        self.longest = max(self.longest, len(path) - 1)
        self.contests += len(path) < len(graph)
        return path
