"""Calls RLlib episode callbacks at the same points as the RLlib loop, with an episode built only if it is read."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils import force_list

from fastmarl.core.errors import RunningEpisodeError
from fastmarl.rllib.sampling.internals import BATCH, EARLIER, EPISODES, Internals
from fastmarl.rllib.sampling.parts import Parts
from fastmarl.rllib.store.builder import Builder, RLlibChunk
from fastmarl.rllib.store.episode_in_view import EpisodeInView, prune
from fastmarl.rllib.store.records import RLlibRecord
from fastmarl.rllib.store.running_episodes import RunningEpisodes

CREATED, START, STEP, END = EVENTS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


def listeners(internals: Internals, event: str) -> list[Any]:
    """Return the callbacks of a runner for an event: methods of callback objects, and functions in the config."""
    methods = [
        getattr(each, event)
        for each in internals.callbacks
        if getattr(type(each), event) is not getattr(RLlibCallback, event) or event in vars(each)
    ]
    return [*methods, *force_list(getattr(internals.runner.config, f"callbacks_{event}"))]


class EpisodeEvents:
    """Calls episode callbacks.

    Args:
        parts: Lanes, store, inference and settings of the runner.
        builder: Reads the latest actions and outputs of agents.
        episodes: Builds running episodes.

    Attributes:
        listened: Events with callbacks.
        views: Env index -> view of the running episode, made on demand.
        late: Envs to be handled by `write_back_late()`.
        is_in_tick: True while envs step; False while all envs are reset, and between calls.
        passing: See RunningEpisodes.
    """

    def __init__(self, parts: Parts, builder: Builder, episodes: RunningEpisodes):
        self._parts = parts
        self._builder = builder
        self._episodes = episodes
        self.views: dict[int, EpisodeInView] = {}
        self.late: set[int] = set()
        self._shown: list[EpisodeInView] = []  # while callbacks run: views they can read
        self.listened: frozenset[str] = frozenset()
        self.is_in_tick = False
        self._keeps_chunks = False
        self.passing = episodes.passing

    def refresh(self) -> None:
        """Determine which events have callbacks. Must be called before each sample() call."""
        self.listened = frozenset(event for event in EVENTS if listeners(self._parts.internals, event))

    @property
    def has_built(self) -> bool:
        """True if running episodes have been built for callbacks or connectors."""
        return any(view.is_built for view in self.views.values())

    def view_of(self, env_index: int) -> EpisodeInView | None:
        """Return the view of the running episode in the env, or None if it has not been created."""
        return self.views.get(env_index)

    def begin(self, env_index: int) -> None:
        """Call `on_episode_created` for a new record."""
        self.views.pop(env_index, None)
        self.late.discard(env_index)
        self.fire(CREATED, env_index)

    def cut(self, horizon: int) -> dict[int, Any]:
        """Cut all built running episodes and return env -> next chunk."""
        successors = {}
        for env_index, view in sorted(self.views.items()):
            if view.is_built:
                record = self._parts.record_of(env_index)
                episode, mapping = view.episode, record.mapping
                # The mapping function is called elsewhere, and its result at a cut is not used.
                episode.agent_to_module_mapping_fn = lambda agent_id, _, known=mapping: known.get(agent_id, "")
                successors[env_index] = episode.cut(horizon)
                for each in (episode, successors[env_index]):
                    each.agent_to_module_mapping_fn = record.policy_mapping_fn
        return successors

    def go_on(self, successors: dict[int, Any]) -> None:
        """Continue all running episodes in new chunks; `successors` contains the new chunks of built episodes."""
        views, self.views = self.views, {}
        for record in self._parts.running():
            env_index = record.env_index
            if env_index in views:
                record.custom_data = deepcopy(record.custom_data)  # the chunk keeps a separate object
            if env_index in successors:
                episode = successors[env_index]
                episode._agent_to_module_mapping, episode._custom_data = record.mapping, record.custom_data
                self.views[env_index] = EpisodeInView(self._episodes, record, episode)

    def keep_chunk(self, record: RLlibRecord, episode: Any) -> None:
        """Keep a returned chunk for callbacks at the end of the episode, which receive all chunks."""
        if END in self.listened or self._keeps_chunks:
            self._earlier_chunks[record.id_].append(episode)

    @property
    def _earlier_chunks(self) -> Any:
        return self._parts.internals.loop[EARLIER]

    def complete_earlier_chunks(self, record: RLlibRecord) -> None:
        """Store all returned chunks of a running episode in the runner, or their numbers if they no longer exist."""
        chunks = self._earlier_chunks
        n_missing = len(record.earlier) - len(chunks.get(record.id_, ()))
        if n_missing > 0:  # not if episodes share an id, and thus their chunks
            chunks[record.id_][:0] = [chunk.shown for chunk in record.earlier[:n_missing]]

    def fire(self, event: str, env_index: int, *, is_late: bool = False) -> None:
        """Call the callbacks of an event.

        Args:
            event: One of EVENTS.
            env_index: Index of the env.
            is_late: True if RLlib has already built the next module batch at this point, with the observations from
                before the callbacks.
        """
        if event not in self.listened:
            return
        internals, record = self._parts.internals, self._parts.record_of(env_index)
        view, id_ = self.view_of_running(record), record.id_
        if event == END:
            self.complete_earlier_chunks(record)
            internals.lends_earlier_chunks = True
        self._shown = [view]
        try:
            with view as episode, self._live_metrics(internals.runner.metrics):
                internals.make_on_episode_callback(event, env_index, {env_index: episode})
        finally:
            internals.lends_earlier_chunks = False
            shown, self._shown = self._shown, []
            for each in shown:
                each.close()
        for each in shown:
            each.update_record()
        if event == END:
            self._earlier_chunks.pop(id_, None)
        elif record.id_ != id_ and id_ in self._earlier_chunks:
            self._earlier_chunks[record.id_] += self._earlier_chunks.pop(id_)
        for each in shown:
            self._take_over(each, event, is_late=is_late)

    def _take_over(self, view: EpisodeInView, event: str, *, is_late: bool) -> None:
        """Apply the changes that callbacks made to an episode."""
        if not view.is_built:
            return
        record = view.record
        if event != END and view.episode.is_done and not (record.is_terminated or record.is_truncated):
            raise RunningEpisodeError(
                f"{event} ended the episode of env {record.env_index} (is_terminated or is_truncated), but the env "
                "continues it; let the env end it"
            )
        if is_late:
            self.late.add(record.env_index)
        else:
            self.write_observations(view)

    # For code that reads the state of the RLlib loop.

    def keep_chunks(self) -> None:
        """Store the returned chunks of running episodes in the runner, now and from now on."""
        self._keeps_chunks = True
        for record in self._parts.running():
            self.complete_earlier_chunks(record)

    def shown(self, name: str) -> Any:
        """Return the value that this runner attribute would have in the RLlib loop at this point of the call.

        Raises:
            RunningEpisodeError: If the value is unknown here, for example because a step is only partly recorded.
        """
        if name == EPISODES and self._shown:
            return self._shown_episodes()
        if name == BATCH and self.is_in_tick:
            return None  # until all callbacks have been called
        raise RunningEpisodeError(
            f"can't read the runner's {name} here while fastmarl samples; from the next call on, RLlib's loop samples"
        )

    def _shown_episodes(self) -> list[Any]:
        """Return the running episodes of all envs, which can be read until the callback returns."""
        parts = self._parts
        views = [
            None if record is None else self.view_of_running(parts.record_of(i))
            for i, record in enumerate(parts.table.records)
        ]
        for view in views:
            if view is not None and view not in self._shown:
                view.__enter__()
                self._shown.append(view)
        return [None if view is None else view.episode for view in views]

    @contextmanager
    def _live_metrics(self, logger: Any) -> Iterator[None]:
        """Log the counts of the call before callbacks read the logger, rather than at the end of the call."""

        def peek(*args: Any, **options: Any) -> Any:
            self._parts.log_counts()
            return type(logger).peek(logger, *args, **options)

        logger.peek = peek
        try:
            yield
        finally:
            vars(logger).pop("peek", None)  # a callback may already have done so

    def write_back_late(self) -> None:
        """Write back changes by late callbacks after the modules have acted."""
        for env_index in self.late:
            self.write_observations(self.views[env_index])
        self.late.clear()

    def built_episode(self, record: RLlibRecord) -> Any:
        """Return the running episode as in the RLlib loop."""
        return self.view_of_running(record).built()

    def view_of_ended(self, chunk: RLlibChunk) -> EpisodeInView:
        """Return the view of a finished episode, for callbacks and connectors."""
        if chunk.view is None:
            chunk.view = EpisodeInView(self._episodes, chunk.record)
        elif chunk.view.is_built and chunk.view.ended is None:
            prune(chunk.view.episode)
        chunk.view.ended = chunk
        return chunk.view

    def view_of_running(self, record: RLlibRecord) -> EpisodeInView:
        """Return the view of a running episode, for callbacks and connectors."""
        view = self.views.get(record.env_index)
        if view is None:
            view = self.views[record.env_index] = EpisodeInView(self._episodes, record)
        return view

    # Built episodes are extended step by step, as in the RLlib loop.

    def acted(self, actions: list[dict]) -> dict[int, dict[Hashable, tuple[Any, Any, Any]]]:
        """Return, for each env with a built episode, agent id -> (action, other outputs, accumulated reward)."""
        self._parts.store.stamp_all()
        return {
            env_index: {
                agent_id: self._builder.hanging_outputs(self._parts.table.envs[env_index].lane_of[agent_id])
                for agent_id in actions[env_index]
            }
            for env_index, view in sorted(self.views.items())
            if view.is_built
        }

    def add_reset(self, env_index: int, obs: dict, infos: dict | None) -> None:
        """Add a reset of an env to its episode, if the episode has been built."""
        view = self.views.get(env_index)
        if view is not None and view.is_built:
            view.episode.add_env_reset(observations=deepcopy(obs), infos=infos)

    def add_step(self, env_index: int, acted: dict[Hashable, tuple[Any, Any, Any]], step: tuple) -> None:
        """Add a step of an env to its built episode. Observations are copied, as in RLlib's vector env."""
        obs, rewards, terminateds, truncateds, infos = step
        self.views[env_index].episode.add_env_step(
            deepcopy(obs),
            {agent_id: action for agent_id, (action, _, _) in acted.items()},
            rewards,
            infos,
            terminateds=terminateds,
            truncateds=truncateds,
            extra_model_outputs={agent_id: extras for agent_id, (_, extras, _) in acted.items() if extras},
        )

    def write_observations(self, view: EpisodeInView) -> None:
        """Write the latest observations, possibly changed by callbacks, to the blocks read by modules."""
        record = view.record
        table, live = self._parts.table, self._parts.table.envs[record.env_index].lane_of
        for agent_id, lane in record.lane_of.items():
            block, final = self._parts.store.blocks[table.module_L[lane]], int(table.final_L[lane])
            if agent_id in live:
                block.overwrite(table.row_L[lane], view.episode.agent_episodes[agent_id].observations.data[-1])
            elif block.raw_layout is not None and final >= block.n_finals_connected:
                block.overwrite_final(final, view.episode.agent_episodes[agent_id].observations.data[-1])
