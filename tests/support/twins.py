"""A batch that steps in arrays beside the envs it stands for, with the same starts and actions."""

import numpy as np

from fastmarl.core.envs.values import random_action
from fastmarl.core.spaces.layout import RowLayout


class Twins:
    """Compares everything an agent of these envs sees and gets.

    Args:
        batch: an ArrayEnv.
        originals: as many envs that speak in dicts by agent.
        begin: (env index, original, seed or None) -> the original's first observations, of the state that the batch
            is in after its reset.
        seed: the batch's env i is first reset with `seed + i`.
        rtol: of observations and rewards, relative to 1 or to the number; 0: bit-identical.
    """

    def __init__(self, batch, originals, begin, seed, rtol=0.0):
        self.batch, self.originals, self.begin, self.rtol = batch, originals, begin, rtol
        self.obs = [{} for _ in originals]
        self.acting = [[] for _ in originals]
        self.there = [[] for _ in originals]  # who has been observed and not ended
        self.places = {agent: (name, i) for name, ids in batch.groups.items() for i, agent in enumerate(ids)}
        self.layouts = {agent: RowLayout(space) for agent, space in batch.observation_spaces.items()}
        self.episodes = self.agent_ends = self.truncated = 0
        for agent, space in batch.action_spaces.items():
            space.seed(seed + self.places[agent][1])
        self.seeds = [seed + i for i in range(len(originals))]
        self.reset(np.arange(len(originals)))

    def reset(self, env_indices):
        seeds, self.seeds = self.seeds, None
        self.out = self.batch.new_arrays()
        self.batch.reset(env_indices, self.out, seeds=seeds)
        for e in env_indices.tolist():
            self.obs[e] = self.begin(e, self.originals[e], None if seeds is None else seeds[e])
            self.acting[e], self.there[e] = list(self.obs[e]), list(self.obs[e])
            self.compare(e, self.obs[e], {})

    def play(self, steps, act=None):
        """Make steps with random legal actions, or those of act(env index, agent, observation)."""
        act = act or (lambda e, agent, obs: random_action(self.batch.action_spaces[agent], self.mask(obs)))
        for _ in range(steps):
            actions = [
                {agent: act(e, agent, self.obs[e][agent]) for agent in acting} for e, acting in enumerate(self.acting)
            ]
            self.step(actions)
            over = self.out.terminated | self.out.truncated
            if over.any():
                self.reset(np.flatnonzero(over))

    @staticmethod
    def mask(obs):
        return obs["action_mask"] if isinstance(obs, dict) else None

    def step(self, actions):
        arrays = {}
        for name, agents in self.batch.groups.items():
            space = self.batch.action_spaces[agents[0]]
            arrays[name] = np.zeros((len(actions), len(agents), *space.shape), space.dtype)
        for e, of_env in enumerate(actions):
            for agent, action in of_env.items():
                name, i = self.places[agent]
                arrays[name][e, i] = action
        self.out = self.batch.new_arrays()
        for e, there in enumerate(self.there):
            for agent, (name, i) in self.places.items():
                self.out.groups[name].present[e, i] = agent in there
        self.batch.step(arrays, self.out)
        for e, original in enumerate(self.originals):
            self.obs[e], rewards, terminateds, truncateds, _ = original.step(actions[e])
            self.there[e] += [agent for agent in self.obs[e] if agent not in self.there[e]]
            self.compare(e, self.obs[e], rewards)
            self.compare_ends(e, terminateds, truncateds)

    def compare(self, e, obs, rewards):
        for agent, (name, i) in self.places.items():
            group = self.out.groups[name]
            assert group.present[e, i] == (agent in obs)
            self.assert_close(group.rewards[e, i], rewards.get(agent, 0.0))
            if agent in obs:
                layout = self.layouts[agent]
                for ours, theirs in zip(layout.leaves_of(group.obs), layout.leaves_of(obs[agent]), strict=True):
                    self.assert_close(ours[e, i], theirs)

    def compare_ends(self, e, terminateds, truncateds):
        """An agent without flags of its own has its episode's."""
        ours = bool(self.out.terminated[e]), bool(self.out.truncated[e])
        theirs = terminateds["__all__"], truncateds.get("__all__", False)
        assert ours == theirs
        ended = []
        for agent in self.there[e]:
            name, i = self.places[agent]
            group = self.out.groups[name]
            own = bool(group.terminated[e, i]), bool(group.truncated[e, i])
            their_own = bool(terminateds.get(agent, False)), bool(truncateds.get(agent, False))
            assert (own if any(own) else ours) == (their_own if any(their_own) else theirs)
            ended += [agent] * any(own)
        self.there[e] = [agent for agent in self.there[e] if agent not in ended]
        self.acting[e] = [agent for agent in self.obs[e] if agent in self.there[e]]
        self.episodes += any(ours)
        self.truncated += ours[1]
        self.agent_ends += len(ended)

    def assert_close(self, ours, theirs):
        np.testing.assert_allclose(ours, theirs, rtol=self.rtol, atol=self.rtol)
