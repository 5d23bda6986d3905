"""Policies with almost no cost, which leave the sampler's own cost."""

import torch


class NoPolicy(torch.nn.Module):
    """All agents take action 0; nothing else is computed."""

    def __init__(self):
        super().__init__()
        self._zeros = torch.zeros(0, dtype=torch.int64)

    def forward(self, batch):
        n = len(batch["obs"])
        if len(self._zeros) < n:
            self._zeros = torch.zeros(n, dtype=torch.int64)
        return {"actions": self._zeros[:n]}
