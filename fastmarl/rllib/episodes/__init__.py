"""RLlib's MultiAgentEpisode with its defects corrected."""

from fastmarl.rllib.episodes.episode import EPISODE_FIXES as EPISODE_FIXES
from fastmarl.rllib.episodes.episode import MultiAgentEpisode as MultiAgentEpisode
from fastmarl.rllib.episodes.episode import episode_class as episode_class
