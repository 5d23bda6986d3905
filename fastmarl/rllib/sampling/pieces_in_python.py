"""Runs connector pieces on episodes: custom pieces, and RLlib pieces that cannot run on entire columns."""

import logging
from collections import defaultdict
from collections.abc import Hashable
from contextlib import ExitStack
from operator import is_
from time import perf_counter
from typing import Any

from fastmarl.core.errors import ConnectorError
from fastmarl.rllib.connectors.newest import Newest
from fastmarl.rllib.sampling.episode_events import EpisodeEvents
from fastmarl.rllib.sampling.parts import Parts
from fastmarl.rllib.store.builder import RLlibChunk
from fastmarl.rllib.store.episode_in_view import EpisodeInView

logger = logging.getLogger(__name__)


class PiecesInPython:
    """Passes episodes to pieces as in the RLlib loop, and stores the observations that pieces write to them.

    Args:
        parts: Lanes, store, inference and settings of the runner.
        events: Provides the views of episodes.

    Attributes:
        explore: The `explore` argument of the current sample() call.
        ended: Chunks of the episodes finished in this step.
    """

    def __init__(self, parts: Parts, events: EpisodeEvents):
        self._parts = parts
        self._events = events
        self.explore = True
        self.ended: list[RLlibChunk] = []
        self._seconds: dict[str, float] = defaultdict(float)  # piece name -> seconds in this sample() call
        self._warned: set[str] = set()

    def run(self, piece: Any, newest: list[Newest], batch: dict[str, Any], *, has_ended: bool) -> dict[str, Any]:
        """Call a piece to rewrite the latest observations, and return the resulting batch.

        Args:
            piece: The connector piece.
            newest: The latest observations per module, which are rewritten.
            batch: Batch passed to the piece.
            has_ended: True for finished episodes, False for running ones.
        """
        began, views, passing = perf_counter(), self.views(has_ended=has_ended), self._events.passing
        given = [(each, each.lanes.tolist(), each.items()) for each in newest]
        passing |= {lane: item for _, lanes, items in given for lane, item in zip(lanes, items, strict=True)}
        try:
            batch = self._call(piece, batch, views, has_ended=has_ended)
            for view in views.values():
                view.update_record()
            for each, lanes, items in given:
                made = []
                for lane, (env_index, agent_id) in zip(lanes, each.who, strict=True):
                    if views[env_index].is_built:
                        made.append(views[env_index].episode.agent_episodes[agent_id].observations.data[-1])
                    else:
                        made.append(passing[lane])
                if not each.layout.is_array or not all(map(is_, made, items)):  # nested values may have changed inside
                    each.rewrite_items(made)
        finally:
            passing.clear()
            self._seconds[type(piece).__name__] += perf_counter() - began
        return batch

    def call(self, piece: Any, batch: dict[str, Any], *, has_ended: bool) -> dict[str, Any]:
        """Call a piece with a batch and the episodes, after the rewritten observations were stored."""
        began, views = perf_counter(), self.views(has_ended=has_ended)
        try:
            batch = self._call(piece, batch, views, has_ended=has_ended)
            for view in views.values():
                view.update_record()
                if view.is_built and not has_ended:
                    self._events.write_observations(view)
        finally:
            self._seconds[type(piece).__name__] += perf_counter() - began
        return batch

    def call_default(self, piece: Any, batch: dict[str, Any]) -> dict[str, Any]:
        """Call one of the default RLlib pieces on the running episodes."""
        return self._call(piece, batch, self.views(has_ended=False), has_ended=False)

    def views(self, *, has_ended: bool) -> dict[int, EpisodeInView]:
        """Return env -> view of the episodes finished in this step, or of the running episodes."""
        events = self._events
        if has_ended:
            return {chunk.record.env_index: events.view_of_ended(chunk) for chunk in self.ended}
        return {record.env_index: events.view_of_running(record) for record in self._parts.running()}

    def _call(
        self, piece: Any, batch: dict[str, Any], views: dict[int, EpisodeInView], *, has_ended: bool
    ) -> dict[str, Any]:
        runner = self._parts.runner
        with ExitStack() as stack:
            made = piece(
                rl_module=runner.module,
                batch=batch,
                episodes=[stack.enter_context(view) for view in views.values()],
                explore=self.explore,
                shared_data=self._parts.shared_data.content,
            )
        if not isinstance(made, dict):
            raise ConnectorError("(all)", type(piece).__name__, f"expected the piece to return a batch, got {made!r}")
        return made

    def log_slow_pieces(self, seconds: float) -> None:
        """Warn once per piece that it runs in Python, stating its share of the call duration `seconds`."""
        for name, own in self._seconds.items():
            if name not in self._warned:
                self._warned.add(name)
                share = f"{100 * own / seconds:.0f} %"
                logger.warning("The connector piece %s runs in Python and took %s of this sample() call.", name, share)
        self._seconds.clear()

    def built_parts(self, *, has_ended: bool) -> dict[tuple[int, Hashable], Any]:
        """Return (env index, agent id) -> agent episode, for built episodes."""
        views = {record.env_index: self._events.view_of(record.env_index) for record in self._parts.running()}
        if has_ended:
            views = {chunk.record.env_index: chunk.view for chunk in self.ended}
        return {
            (env_index, agent_id): part
            for env_index, view in views.items()
            if view is not None and view.is_built
            for agent_id, part in view.episode.agent_episodes.items()
        }
