"""Our drop-in for RLlib's old API stack, set up like RLlib's own worker."""

from fastmarl.rllib import RolloutWorker
from peer_samplers.rllib_old import build_with
from peer_samplers.work import Sampler, Setting

DISTRIBUTION = "ray"


def build(setting: Setting) -> Sampler:
    return build_with(RolloutWorker, setting)
