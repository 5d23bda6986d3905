"""Connector pieces that run themselves, upon whole episodes: the user's own, and RLlib's where columns won't do."""

import logging
from collections import defaultdict
from collections.abc import Hashable
from contextlib import ExitStack
from time import perf_counter
from typing import Any

from fastmarl.rllib.connectors.newest import Newest
from fastmarl.rllib.sampling.core import Core
from fastmarl.rllib.sampling.episode_events import EpisodeEvents
from fastmarl.rllib.store.builder import RLlibChunk
from fastmarl.rllib.store.episode_in_view import EpisodeInView

logger = logging.getLogger(__name__)


class PiecesInPython:
    """Shows pieces the episodes as RLlib's loop has them, and takes over the newest observations that they put there.

    Args:
        core: the parts to work with.
        events: knows the episodes.

    Attributes:
        explore: as the call of sample() says.
        ended: the chunks of episodes that have ended in this step.
    """

    def __init__(self, core: Core, events: EpisodeEvents):
        self._core = core
        self._events = events
        self.explore = True
        self.ended: list[RLlibChunk] = []
        self._seconds: dict[str, float] = defaultdict(float)  # by names of pieces, in this call of sample()
        self._told: set[str] = set()

    def run(self, piece: Any, newest: list[Newest], *, has_ended: bool) -> None:
        """Have a piece rewrite what has come.

        Args:
            has_ended: whether that is of the episodes that have ended, and not of those that go on.
        """
        events, began = self._events, perf_counter()
        if has_ended:
            views = {chunk.record.env_index: events.view_of_ended(chunk) for chunk in self.ended}
        else:
            views = {record.env_index: events.view_of_running(record) for record in self._core.running()}
        passing = events.passing
        passing |= {lane: item for each in newest for lane, item in zip(each.lanes.tolist(), each.items(), strict=True)}
        try:
            self._call(piece, list(views.values()))
            for view in views.values():
                view.write_back()
            for each in newest:
                items = []
                for lane, (env_index, agent_id) in zip(each.lanes.tolist(), each.who, strict=True):
                    if views[env_index].is_whole:
                        items.append(views[env_index].episode.agent_episodes[agent_id].observations.data[-1])
                    else:
                        items.append(passing[lane])
                each.rewrite_items(items)
        finally:
            passing.clear()
            self._seconds[type(piece).__name__] += perf_counter() - began

    def _call(self, piece: Any, views: list[EpisodeInView]) -> None:
        runner = self._core.runner
        with ExitStack() as stack:
            piece(
                rl_module=runner.module,
                batch={},
                episodes=[stack.enter_context(view) for view in views],
                explore=self.explore,
                shared_data=runner._shared_data,
            )

    def tell(self, seconds: float) -> None:
        """Say once of each piece that it runs in Python, and what that costs; a call took so many seconds."""
        for name, own in self._seconds.items():
            if name not in self._told:
                self._told.add(name)
                share = f"{100 * own / seconds:.0f} %"
                logger.warning("The connector piece %s runs in Python: %s of the time of this sample().", name, share)
        self._seconds.clear()

    def whole_parts(self, *, has_ended: bool) -> dict[tuple[int, Hashable], Any]:
        """Agents' episodes of those that are whole, by (env index, agent id)."""
        views = {record.env_index: self._events.view_of(record.env_index) for record in self._core.running()}
        if has_ended:
            views = {chunk.record.env_index: chunk.view for chunk in self.ended}
        return {
            (env_index, agent_id): part
            for env_index, view in views.items()
            if view is not None and view.is_whole
            for agent_id, part in view.episode.agent_episodes.items()
        }
