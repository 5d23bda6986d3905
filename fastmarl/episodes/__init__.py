"""What a runner returns: episodes, whole or in chunks."""

from fastmarl.episodes.conversion import from_rllib as from_rllib
from fastmarl.episodes.conversion import to_rllib as to_rllib
from fastmarl.episodes.multi_agent import MultiAgentEpisode as MultiAgentEpisode
from fastmarl.episodes.single_agent import SingleAgentEpisode as SingleAgentEpisode
