"""An env with action masks in all places and of all forms, which checks that actions are legal."""

import gymnasium as gym
import numpy as np

import fastmarl

N = 5
SPACES = {
    "discrete": gym.spaces.Discrete(N),
    "started": gym.spaces.Discrete(N, start=3),
    "multi_discrete": gym.spaces.MultiDiscrete([3, 2]),
}
PLACES = ("action_mask", "avail_actions", "info")
ENTRIES = {"int8": np.int8, "bool": np.bool_, "float32": np.float32, "float64": np.float64, "int64": np.int64}
FORMS = ("binary", *ENTRIES, "parts")


class MaskedEnv(fastmarl.MultiAgentEnv):
    """Two agents; what is legal follows from agent and time. Agent "b" acts in every second step only, and dies.

    Args:
        config: "space", of actions; "place" and "form" of the mask; "illegal_at": env step at which nothing is legal
            for "a".
    """

    def __init__(self, config):
        self.possible_agents = ["a", "b"]
        self.place, self.illegal_at = config["place"], config.get("illegal_at")
        self.form = config.get("form", "binary")
        action_space = SPACES[config["space"]]
        self.sizes = [N] if isinstance(action_space, gym.spaces.Discrete) else action_space.nvec.tolist()
        vector = gym.spaces.Box(-1, 1, (2,), np.float32)
        masked = gym.spaces.Dict({"vector": vector, self.place: self.mask_space()})
        self.observation_spaces = dict.fromkeys(self.possible_agents, vector if self.place == "info" else masked)
        self.action_spaces = dict.fromkeys(self.possible_agents, action_space)
        self.start = getattr(action_space, "start", 0)

    def mask_space(self):
        if self.form == "parts":
            return gym.spaces.Tuple([gym.spaces.MultiBinary(size) for size in self.sizes])
        return gym.spaces.MultiBinary(N) if self.form == "binary" else gym.spaces.Box(0, 1, (N,), ENTRIES[self.form])

    def mask(self, agent):
        if (agent == "a" and self.t == self.illegal_at) or (agent == "b" and self.t >= 8):
            return np.zeros(N, np.int8)
        rng = np.random.default_rng([self.t, ord(agent)])
        parts = [(rng.random(size) < 0.5).astype(np.int8) for size in self.sizes]
        for part in parts:
            part[rng.integers(len(part))] = 1
        return np.concatenate(parts)

    def sent(self, mask):
        """The mask in its form."""
        if self.form == "parts":
            return tuple(np.split(mask, np.cumsum(self.sizes)[:-1]))
        return mask.astype(ENTRIES.get(self.form, np.int8))

    def answer(self, agents):
        masks = {agent: self.sent(self.mask(agent)) for agent in agents}
        vector = np.full(2, self.t / 20, np.float32)
        if self.place == "info":
            return dict.fromkeys(agents, vector), {agent: {"action_mask": mask} for agent, mask in masks.items()}
        return {agent: {"vector": vector, self.place: mask} for agent, mask in masks.items()}, {}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.answer(["a", "b"])

    def step(self, actions):
        for agent, action in actions.items():
            self.check(self.mask(agent), action)
        self.t += 1
        ends = self.t == 8
        agents = ["a", "b"] if self.t % 2 == 0 and self.t <= 8 else ["a"]
        obs, infos = self.answer(agents)
        return obs, dict.fromkeys(actions, 1.0), {"b": ends, "__all__": False}, {"__all__": self.t == 12}, infos

    def check(self, mask, action):
        begin = 0
        for size, part in zip(self.sizes, np.ravel(action - self.start), strict=True):
            assert mask[begin : begin + size][part], f"{action} at {self.t}, where {mask} is legal"
            begin += size


class LateMaskEnv(MaskedEnv):
    """Infos have a mask from the third step on, and every third step only."""

    def answer(self, agents):
        obs, infos = super().answer(agents)
        return obs, infos if self.t and self.t % 3 == 0 else {}

    def check(self, mask, action):
        if self.t and self.t % 3 == 0:
            super().check(mask, action)
