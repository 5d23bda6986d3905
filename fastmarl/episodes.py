"""Episodes as returned by a runner, complete or in chunks."""

from typing import TYPE_CHECKING

from fastmarl.core.objects.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.core.episodes.conversion import from_rllib as from_rllib
    from fastmarl.core.episodes.conversion import to_rllib as to_rllib
    from fastmarl.core.episodes.multi_agent import MultiAgentEpisode as MultiAgentEpisode
    from fastmarl.core.episodes.single_agent import SingleAgentEpisode as SingleAgentEpisode

__all__, __getattr__ = imported_when_used(__name__)
