"""The episodes that a runner returns, whole or in chunks."""

from typing import TYPE_CHECKING

from fastmarl.core.public import imported_when_used

if TYPE_CHECKING:
    from fastmarl.core.episodes.conversion import from_rllib as from_rllib
    from fastmarl.core.episodes.conversion import to_rllib as to_rllib
    from fastmarl.core.episodes.multi_agent import MultiAgentEpisode as MultiAgentEpisode
    from fastmarl.core.episodes.single_agent import SingleAgentEpisode as SingleAgentEpisode

_HOMES = {
    "MultiAgentEpisode": "fastmarl.core.episodes.multi_agent",
    "SingleAgentEpisode": "fastmarl.core.episodes.single_agent",
    "from_rllib": "fastmarl.core.episodes.conversion",
    "to_rllib": "fastmarl.core.episodes.conversion",
}
__all__ = [*sorted(_HOMES)]

__getattr__ = imported_when_used(__name__, _HOMES)
