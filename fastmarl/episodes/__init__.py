"""What a runner returns: episodes, whole or in chunks."""

from fastmarl.episodes.multi_agent import MultiAgentEpisode as MultiAgentEpisode
from fastmarl.episodes.single_agent import SingleAgentEpisode as SingleAgentEpisode
