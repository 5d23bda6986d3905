"""The hares' network: an actor and a critic over one window of the map."""

from typing import Any

from torch import nn


class HareNet(nn.Module):
    """An actor and a critic that see only the window; the runner applies the action mask to the logits."""

    def __init__(self, num_inputs: int = 196, num_actions: int = 5, width: int = 64):
        super().__init__()
        self.actor = self._layers(num_inputs, width, num_actions)
        self.critic = self._layers(num_inputs, width, 1)

    def _layers(self, num_inputs: int, width: int, num_outputs: int) -> nn.Sequential:
        hidden = nn.Linear(num_inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        return nn.Sequential(*hidden, nn.Linear(width, num_outputs))

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        window = batch["obs"]["observation"]
        return {"action_dist_inputs": self.actor(window), "vf_preds": self.critic(window).squeeze(-1)}
