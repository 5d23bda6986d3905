"""The episodes that a runner returns, whole or in chunks."""

from fastmarl.core.episodes.conversion import from_rllib, to_rllib
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode

__all__ = [
    "MultiAgentEpisode",
    "SingleAgentEpisode",
    "from_rllib",
    "to_rllib",
]
