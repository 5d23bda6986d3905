"""Half of the limit, not a sampler: the bare network on ready-made batches, with actions by torch.distributions."""

import torch
from torch.distributions import Categorical

from peer_samplers.work import AGENTS, OBSERVATION_SIZE, TICKS, Net, Sampler, Setting

DISTRIBUTION = "torch"


def build(setting: Setting) -> Sampler:
    net = Net()
    observations = torch.randn(setting.num_envs * AGENTS, OBSERVATION_SIZE)

    def collect() -> int:
        with torch.no_grad():
            for _ in range(TICKS):
                logits, _ = net(observations)
                chosen = Categorical(logits=logits)
                chosen.log_prob(chosen.sample())
        return TICKS * len(observations)

    return Sampler(collect, {"sampling": "torch.distributions.Categorical, torch.no_grad", "recorded": "nothing"})
