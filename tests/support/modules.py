"""Small modules for tests of what plays with them."""

import warnings

import numpy as np
import torch

import fastmarl


class Always(fastmarl.RLModule):
    """Chooses the same number for ever; remembers the largest batch that it was given."""

    def __init__(self, number, **kwargs):
        super().__init__(**kwargs)
        self.number, self.most_rows = number, 0

    def _forward(self, batch, **kwargs):
        self.most_rows = max(self.most_rows, len(batch["obs"]))
        return {"actions": np.full(len(batch["obs"]), self.number)}


class Normed(fastmarl.RLModule):
    """Its layer keeps a weight that is computed, which `copy.deepcopy()` refuses."""

    def setup(self):
        super().setup()
        with warnings.catch_warnings(action="ignore"):  # torch has another way by now
            self.net = torch.nn.utils.weight_norm(torch.nn.Linear(self.observation_space.shape[0], self.action_space.n))

    def _forward(self, batch, **kwargs):
        return {"action_dist_inputs": self.net(batch["obs"])}
