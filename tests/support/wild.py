"""An environment in which everything happens that the protocol allows, drawn from the seed of the reset."""

import gymnasium as gym
import numpy as np

import fastmarl
from fastmarl.core.spaces.layout import RowLayout, leaf_spaces

OBS = gym.spaces.Dict({"far": gym.spaces.Box(-9, 9, (2,), np.float64), "near": gym.spaces.Discrete(5)})
ACTIONS = {
    "discrete": gym.spaces.Discrete(4, start=-2),
    "many": gym.spaces.Discrete(70_000),
    "multi": gym.spaces.MultiDiscrete([3, 300]),
    "binary": gym.spaces.MultiBinary(3),
    "box": gym.spaces.Box(np.array([-2, 0], np.float32), np.array([3, 7], np.float32)),
    "scalar": gym.spaces.Box(-1.0, 4.0, ()),
    "nested": gym.spaces.Dict(
        {"z": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,))]), "a": gym.spaces.Discrete(2)}
    ),
}
IDS = [3, "three", (3, "b"), 0, -1]


class Wild(fastmarl.MultiAgentEnv):
    """Agents come, wait, leave and respawn; some receive rewards before their first observation.

    `env_config`: "actions", a key of ACTIONS; "respawn", whether agents respawn; "length", at most; "fail_at", an env
    step in which it raises; "drift_at", an env step from which on it behaves like another env.
    """

    def __init__(self, config):
        self.possible_agents = list(IDS)
        self.observation_space = OBS
        self.action_space = ACTIONS[config.get("actions", "discrete")]
        self.config = config

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.t = 0
        self.length = int(self.rng.integers(1, self.config.get("length", 25)))
        self.dead, self.live = set(), set()
        return self._observe(), {}

    def step(self, actions):
        self.t += 1
        if self.t == self.config.get("fail_at"):
            raise KeyError("lost")
        total = sum(float(np.sum(part)) for action in actions.values() for part in parts_of(self.action_space, action))
        self.drawn = total + (1e-6 if self.t >= self.config.get("drift_at", 1000) else 0)
        ending = [agent for agent in sorted(self.live, key=repr) if self.rng.random() < 0.1]
        terminateds = dict.fromkeys(ending[::2], True) | {"__all__": self.t == self.length}
        truncateds = dict.fromkeys(ending[1::2], True) | {"__all__": False}
        rewarded = [agent for agent in IDS if agent not in self.dead and self.rng.random() < 0.6]
        rewards = {agent: float(self.rng.normal() + self.drawn) for agent in rewarded}
        obs = self._observe(ending)
        self.dead.update(ending)
        self.live.difference_update(ending)
        return obs, rewards, terminateds, truncateds, {agent: {"t": self.t} for agent in obs}

    def _observe(self, ending=()):
        back = self.config.get("respawn")
        seen = [a for a in IDS if (back or a not in self.dead) and self.rng.random() < (0.7 if self.t else 0.9)]
        for agent in seen:
            self.dead.discard(agent)
            self.live.add(agent)
        shift = getattr(self, "drawn", 0.0) if self.t else 0.0
        return {agent: {"far": self._far(shift), "near": int(self.rng.integers(5))} for agent in seen}

    def _far(self, shift):
        return np.clip(self.rng.normal(size=2) + 0.01 * shift, -9, 9)


def parts_of(space, action):
    """The leaves of an action; each must be of the Python type that its space promises."""
    leaves = RowLayout(space).leaves_of(action)
    for leaf, of_leaf in zip(leaves, leaf_spaces(space), strict=True):
        assert (
            type(leaf) is int if isinstance(of_leaf, gym.spaces.Discrete) else isinstance(leaf, np.generic | np.ndarray)
        )
        assert isinstance(leaf, int) or leaf.dtype == of_leaf.dtype
    return leaves
