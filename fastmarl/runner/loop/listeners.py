"""Registers and calls the callbacks of a runner."""

import warnings
import weakref
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from fastmarl.core.callbacks import EVENTS, Listener, listeners
from fastmarl.core.config import EnvRunnerConfig
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode

MOST_REMEMBERED = 100_000  # limit of env steps kept per running episode for on_episode_end


class Listeners:
    """Callbacks of a runner, and the earlier chunks of running episodes for `on_episode_end`.

    Args:
        runner: Passed to the callbacks as `env_runner`.
        config: Config with the callbacks.

    Attributes:
        by_event: Event name -> callbacks.
    """

    by_event: dict[str, tuple[Listener, ...]]

    def __init__(self, runner: Any, config: EnvRunnerConfig):
        self._runner = weakref.ref(runner)  # the runner references this object
        self._objects: list[tuple[Any, Any]] = []  # (class, object)
        self._added: list[tuple[str, Listener]] = []
        self.follow(config)
        self._earlier_chunks: dict[str, list[MultiAgentEpisode]] = {}  # keyed by episode
        self._has_forgotten = False

    def follow(self, config: EnvRunnerConfig) -> None:
        """Switch to the callbacks of `config`, reusing the instances of callback classes already in use.

        Raises:
            ConfigError: If a callback cannot be called with the arguments of its event. Nothing is changed.
        """
        known, objects = list(self._objects), []

        def of(kind: Any) -> Any:
            index = next((index for index, (other, _) in enumerate(known) if other is kind), None)
            objects.append((kind, kind()) if index is None else known.pop(index))
            return objects[-1][1]

        given = config.callbacks_class
        kinds = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
        makers = [partial(of, kind) if callable(kind) else kind for kind in kinds]
        by_event = listeners(makers, {event: getattr(config, f"callbacks_{event}") for event in EVENTS})
        owners = {id(made) for _, made in objects}
        added = [(event, listener) for event, listener in self._added if id(getattr(listener, "__self__", 0)) in owners]
        for event, listener in added:
            by_event[event] = (*by_event[event], listener)
        vars(self).update(_objects=objects, _added=added, by_event=by_event)

    def call(self, event: str, **arguments: Any) -> None:
        runner: Any = self._runner()
        for listener in self.by_event[event]:
            listener(env_runner=runner, metrics_logger=runner.metrics, **arguments)

    def add(self, event: str, listener: Listener) -> None:
        """Add a listener; adding it twice has no effect."""
        if listener not in self.by_event[event]:
            self.by_event[event] = (*self.by_event[event], listener)
            self._added.append((event, listener))

    def remove(self, event: str, listener: Listener) -> None:
        """Remove a listener that was added."""
        self.by_event[event] = tuple(other for other in self.by_event[event] if other != listener)
        self._added = [added for added in self._added if added != (event, listener)]

    def remember(self, samples: Sequence[MultiAgentEpisode], running: Collection[str]) -> None:
        """Keep the chunks of running episodes if any callback listens for the end of episodes."""
        if self.by_event["on_episode_end"]:
            for chunk in samples:
                if not chunk.is_done:
                    self._remember(chunk)
            self._earlier_chunks = {id_: kept for id_, kept in self._earlier_chunks.items() if id_ in running}

    def _remember(self, chunk: MultiAgentEpisode) -> None:
        earlier = self._earlier_chunks.setdefault(chunk.id_, [])
        earlier.append(chunk)
        while len(earlier) > 1 and chunk.env_t - earlier[0].env_t_started > MOST_REMEMBERED:
            if not self._has_forgotten:
                self._has_forgotten = True
                warnings.warn(
                    f"on_episode_end will receive only the chunks of the last {MOST_REMEMBERED} env steps of an "
                    f"episode, as one has become longer and may never end; sum up values in on_sample_end instead",
                    RuntimeWarning,
                    stacklevel=2,
                )
            del earlier[0]

    def take_earlier_chunks(self, episode_id: str) -> list[MultiAgentEpisode]:
        """Remove and return the chunks of a finished episode."""
        return self._earlier_chunks.pop(episode_id, [])

    def forget(self) -> None:
        """Discard all chunks, because the running episodes are dropped."""
        self._earlier_chunks = {}
