"""The sampler of a worker, which builds batches and metrics from the episodes of a runner."""

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import RunnerBusyError
from fastmarl.core.errors.exits import exits_as_errors
from fastmarl.core.objects.public import public
from fastmarl.legacy.files.interfaces import InputReader
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.sampling.batch_builder import BatchBuilder
from fastmarl.legacy.sampling.episodes_under_way import EpisodeUnderWay, RolloutMetrics, joined
from fastmarl.legacy.sampling.worker_callbacks import WorkerCallbacks
from fastmarl.runner.metrics.nested import leaves_of
from fastmarl.runner.runner import MultiAgentEnvRunner

PERF_STATS = ("mean_raw_obs_processing_ms", "mean_inference_ms", "mean_action_processing_ms", "mean_env_wait_ms")
LEAST_SHARE = 8  # while waiting for episodes to finish, each call samples at least 1 / LEAST_SHARE of a batch


class _Building:
    """An object that exists only while a batch is being built."""


@public("fastmarl.legacy")
class EnvRunnerV2(InputReader):
    """Builds batches from the episodes sampled by a runner.

    With `batch_mode="truncate_episodes"`, a batch contains `rollout_fragment_length` steps (env or agent steps, see
    `count_steps_by`) of each env; running episodes are cut and continue in the next batch. With "complete_episodes", a
    batch contains complete episodes.

    Args:
        runner: Runner that samples the episodes; its `sample()` must not be called elsewhere.
        policies: Policy id -> policy, one for each acting module.
        max_seq_len: Maximum number of steps in a sequence of a recurrent policy.
        callbacks: Callbacks of the worker.
        perf_stats_ema_coef: Weight of a step if `perf_stats` are exponential moving averages, which start at 0; None
            for means over all steps.

    Attributes:
        perf_stats: Mean durations in milliseconds per step of all envs, up to the last batch: "mean_env_wait_ms" in the
            envs, "mean_inference_ms" in the modules, "mean_raw_obs_processing_ms" and "mean_action_processing_ms" in
            connectors and bookkeeping before and after the modules; "mean_env_render_ms" is 0, because workers do not
            render.
        unreturned: Batches and metrics not yet returned.
    """

    def __init__(
        self,
        runner: MultiAgentEnvRunner,
        policies: Mapping[str, Policy],
        max_seq_len: int,
        callbacks: WorkerCallbacks,
        perf_stats_ema_coef: float | None = None,
    ):
        self._runner, self._ema_coef = runner, perf_stats_ema_coef
        self._wants_complete = runner.config.batch_mode == "complete_episodes"
        self._builder = BatchBuilder(policies, max_seq_len, callbacks)
        self._episodes: dict[str, EpisodeUnderWay] = {}  # keyed by id: running, or with chunks for a batch
        self._sampled: list[MultiAgentEpisode] = []  # chunks to be added to _episodes
        self._metrics: list[RolloutMetrics] = []  # for episodes finished since the last batch
        self._logged: dict[str, Any] = {}  # values logged by callbacks since episodes were last reported
        self.unreturned: list[Any] = []
        self._passed: list[RolloutMetrics] = []  # metrics skipped by `next()`
        self._building: weakref.ref[_Building] | None = None
        self.perf_stats = dict.fromkeys((*PERF_STATS, "mean_env_render_ms"), 0.0)
        self._n_timed = 0.0  # steps of all envs covered by `perf_stats`

    def run(self) -> Iterator[Any]:
        """Yield batches and the `RolloutMetrics` of finished episodes, endlessly."""
        while True:
            self.make()
            while self.unreturned:
                output, self.unreturned = self.unreturned[0], self.unreturned[1:]
                yield output

    def next(self) -> Any:
        """Return the next MultiAgentBatch; `get_metrics()` returns the metrics that precede it."""
        while True:
            self.make()
            # Nothing is called between adding an output to its new place and removing it from the old one, so no signal
            # handler can run in between.
            if isinstance(self.unreturned[0], RolloutMetrics):
                self._passed += self.unreturned[:1]
                self.unreturned = self.unreturned[1:]
            else:
                batch, self.unreturned = self.unreturned[0], self.unreturned[1:]
                return batch

    def get_metrics(self) -> list[RolloutMetrics]:
        """Return the metrics of finished episodes that `next()` has skipped since the last call, in order."""
        taken, self._passed = self._passed, []
        return taken

    def make(self) -> None:
        """Sample until `unreturned` is not empty."""
        while not self.unreturned:
            wanted = self._runner.config.get_rollout_fragment_length() * self._runner.num_envs
            least = wanted // LEAST_SHARE if self._wants_complete else 0
            self._advance(max(wanted - self._n_pending(), least, 1))

    def step(self) -> list[Any]:
        """Step all envs once.

        Returns:
            `RolloutMetrics` of finished episodes, and the batch if it is complete; most steps return neither.
        """
        self._advance(1)
        outputs, self.unreturned = self.unreturned, []
        return outputs

    def episodes_under_way(self) -> set[str]:
        """Return the ids of episodes that are running or have chunks waiting for a batch."""
        return self._runner.running_episodes | {id_ for id_, episode in self._episodes.items() if episode.chunks}

    def under_way(self, episode_id: str) -> EpisodeUnderWay | None:
        """Return the episode `episode_id` as of the last runner call, or None if it has started since."""
        return self._episodes.get(episode_id)

    def _n_pending(self) -> int:
        chunks = [chunk for episode in self._episodes.values() for chunk in episode.chunks]
        if self._runner.config.count_steps_by == "env_steps":
            return sum(map(len, chunks))
        return sum(chunk.agent_steps() for chunk in chunks)

    def _advance(self, num_timesteps: int) -> None:
        """Sample `num_timesteps` steps and, if that completes a batch, add it and the metrics to `unreturned`."""
        if self._building is not None and self._building() is not None:
            raise RunnerBusyError("sample()", "postprocess_trajectory()", True)
        self._sampled += self._runner.sample(num_timesteps=num_timesteps)
        self._sort_chunks()
        config = self._runner.config
        if (
            not self._wants_complete
            and self._n_pending() < config.get_rollout_fragment_length() * self._runner.num_envs
        ):
            return
        ready = {id_: episode for id_, episode in self._episodes.items() if self._is_ready(episode)}
        chunks = [chunk for episode in ready.values() for chunk in joined(episode.chunks)]
        batches = [self._build(chunks)] if chunks else []
        episodes = self._episodes | {id_: replace(episode, chunks=()) for id_, episode in ready.items()}
        metrics = self._new_metrics()
        # One atomic update: an interrupt can come only before or after it.
        self.__dict__.update(unreturned=[*self.unreturned, *metrics, *batches], _episodes=episodes, _metrics=[],
                             _logged={} if self._metrics else self._logged)  # fmt: skip

    def _is_ready(self, episode: EpisodeUnderWay) -> bool:
        """Return whether the chunks of the episode may be added to a batch."""
        return bool(episode.chunks) and (episode.chunks[-1].is_done or not self._wants_complete)

    def _sort_chunks(self) -> None:
        """Move all sampled chunks to their episodes, in a single atomic update."""
        episodes, metrics = dict(self._episodes), list(self._metrics)
        for chunk in self._sampled:
            before = episodes.get(chunk.id_) or EpisodeUnderWay.of(chunk.id_)
            if not before.chunks:
                episodes.pop(chunk.id_, None)  # batches contain episodes in order of their first chunks
            episodes[chunk.id_] = after = before.with_chunk(chunk, only_complete=self._wants_complete)
            if chunk.is_done and after.env_t is not None:
                metrics.append(after.metrics(chunk))
        running = self._runner.running_episodes
        kept = {id_: episode for id_, episode in episodes.items() if id_ in running or self._is_ready(episode)}
        self.__dict__.update(_episodes=kept, _metrics=metrics, _sampled=[])

    def _build(self, chunks: list[MultiAgentEpisode]) -> Any:
        """Build a batch, rejecting calls of `sample()` in hooks, which would return these chunks again."""
        under_way = _Building()
        try:
            self._building = weakref.ref(under_way)  # weak: clears itself even if an interrupt hits `finally`
            with exits_as_errors():
                return self._builder.build(chunks, self._episodes)
        finally:
            self._building = None

    def _new_metrics(self) -> list[RolloutMetrics]:
        """Return metrics of finished episodes and failed envs, with times and logged values since the last report."""
        names = list(self._runner.metrics.stats)
        report = self._runner.get_metrics()
        values = leaves_of({name: report[str(name)] for name in names}, ())
        self._logged = {**self._logged, **{"/".join(map(str, path)): value for path, value in values if value == value}}
        self._add_times(report)
        faulty = [RolloutMetrics.of_failure()] * report["num_env_failures"]
        ended = [
            metrics._replace(custom_metrics={**self._logged, **metrics.custom_metrics}) for metrics in self._metrics
        ]
        return [metrics._replace(perf_stats=self.perf_stats) for metrics in (*faulty, *ended)]

    def _add_times(self, report: Mapping[str, Any]) -> None:
        """Add times since the last report to `perf_stats`, which are means over all steps or moving averages."""
        n, weight = report["num_env_steps_sampled"] / self._runner.num_envs, self._ema_coef
        if not n:
            return
        self._n_timed += n
        share = n / self._n_timed if weight is None else 1.0 - (1.0 - weight) ** n
        before = self.perf_stats
        self.perf_stats = before | {name: before[name] + share * (report[name] - before[name]) for name in PERF_STATS}
