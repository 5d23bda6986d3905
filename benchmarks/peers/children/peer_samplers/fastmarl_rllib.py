"""Our drop-in for RLlib, set up like RLlib's own runner."""

from fastmarl.rllib import MultiAgentEnvRunner
from peer_samplers.rllib import build_with
from peer_samplers.work import Sampler, Setting

DISTRIBUTION = "ray"


def build(setting: Setting) -> Sampler:
    return build_with(MultiAgentEnvRunner, setting)
