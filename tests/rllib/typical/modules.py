"""Custom modules as projects have them."""

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch import TorchRLModule


class Masked(TorchRLModule):
    """Forbids actions by their logits; observations are dicts with "observations" and "action_mask"."""

    def setup(self) -> None:
        n_in = self.observation_space["observations"].shape[0]
        self._actor = torch.nn.Sequential(
            torch.nn.Linear(n_in, 8), torch.nn.Tanh(), torch.nn.Linear(8, int(self.action_space.n))
        )

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        obs = batch[Columns.OBS]
        forbidden = torch.clamp(torch.log(obs["action_mask"]), min=torch.finfo(torch.float32).min)
        return {Columns.ACTION_DIST_INPUTS: self._actor(obs["observations"]) + forbidden}
