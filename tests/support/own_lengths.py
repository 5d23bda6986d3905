"""Environments whose episodes have lengths of their own."""

import numpy as np

from support.batched import Batched
from support.trouble import Trouble

LENGTHS = (5, 5, 5, 50)


class OwnLength(Trouble):
    """The last env's episodes are ten times as long as those of the others."""

    def __init__(self, config):
        super().__init__(config)
        self.config = {"length": LENGTHS[config.vector_index], **config}
        self.config["vector_index"] = self.index = config.vector_index
        self.n_steps = 0

    def reset(self, *, seed=None, options=None):
        self.is_over = False
        return super().reset(seed=seed)

    def step(self, actions):
        assert not self.is_over, "stepped on after its end"
        self.n_steps += 1
        results = super().step(actions)
        self.is_over = results[3]["__all__"]
        return results

    def _trouble(self, where):
        """Do nothing; no failure happens here."""

    def _obs(self):
        values = [self.index, self.n_resets, self.t]
        return {agent: np.array(values, np.float32) for agent in self.possible_agents}


def make_batch(config):
    """Make a batch of all envs, or of those of a part."""
    step = len(LENGTHS) // config.num_envs
    contexts = [type(config)({}, 0, index, config.num_envs) for index in range(config.vector_index, 4, step)]
    return Batched([OwnLength(context) for context in contexts], ["a", "b"])


KINDS = {
    "sync": {"env": OwnLength, "mode": "sync"},
    "in parts": {"env": OwnLength, "mode": "sync", "worker_num_splits": 2},
    "workers": {"env": OwnLength, "num_workers": 2},
    "workers in parts": {"env": OwnLength, "num_workers": 2, "worker_num_splits": 2},
    "whoever is ready": {"env": OwnLength, "num_workers": 4, "env_batch_size": 1},
    "batch": {"env": make_batch, "mode": "sync"},
    "batches": {"env": make_batch, "mode": "sync", "worker_num_splits": 2},
}
