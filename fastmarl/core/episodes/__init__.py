"""What a runner returns: episodes, whole or in chunks."""

from fastmarl.core.episodes.conversion import from_rllib as from_rllib
from fastmarl.core.episodes.conversion import to_rllib as to_rllib
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode as MultiAgentEpisode
from fastmarl.core.episodes.single_agent import SingleAgentEpisode as SingleAgentEpisode
