"""The sampler of a worker: it steps the runner, and hands out batches and metrics."""

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.errors import RunnerBusyError
from fastmarl.core.exits import exits_as_errors
from fastmarl.core.public import public
from fastmarl.core.runner.runner import MultiAgentEnvRunner
from fastmarl.legacy.files.interfaces import InputReader
from fastmarl.legacy.policies.policy import Policy
from fastmarl.legacy.sampling.batch_builder import BatchBuilder
from fastmarl.legacy.sampling.episodes_under_way import EpisodeUnderWay, RolloutMetrics, joined

PERF_STATS = ("mean_raw_obs_processing_ms", "mean_inference_ms", "mean_action_processing_ms", "mean_env_wait_ms")
LEAST_SHARE = 8  # of a batch is sampled at a time while episodes are waited for


class _Building:
    """Lives while a batch is built."""


@public("fastmarl.legacy")
class EnvRunnerV2(InputReader):
    """Makes batches of what a runner samples.

    With `batch_mode="truncate_episodes"` a batch is `rollout_fragment_length` steps (env or agent steps, by
    `count_steps_by`) of each env; running episodes are cut and go on in the next one. With "complete_episodes" it is
    episodes that have ended, whole.

    Args:
        runner: samples; nobody else calls its `sample()`.
        policies: by policy id, one for each module that acts.
        max_seq_len: steps of recurrent policies' sequences.

    Attributes:
        perf_stats: milliseconds that a step of all envs took, on average: in "mean_env_wait_ms" the envs themselves, in
            "mean_inference_ms" the modules, in "mean_raw_obs_processing_ms" and "mean_action_processing_ms" what is
            between. Of the steps between the last two batches.
        unreturned: batches and metrics that `step()` has made and its caller has not taken.
    """

    def __init__(self, runner: MultiAgentEnvRunner, policies: Mapping[str, Policy], max_seq_len: int):
        self._runner = runner
        self._wants_whole = runner.config.batch_mode == "complete_episodes"
        self._builder = BatchBuilder(policies, max_seq_len)
        self._episodes: dict[str, EpisodeUnderWay] = {}  # by id, those that run or have chunks for a batch
        self._sampled: list[MultiAgentEpisode] = []  # chunks that aren't among these yet
        self._metrics: list[RolloutMetrics] = []  # of episodes that have ended since the last batch
        self.unreturned: list[Any] = []
        self._passed: list[RolloutMetrics] = []  # by `next()`, on the way to a batch
        self._building: weakref.ref[_Building] | None = None
        self.perf_stats = dict.fromkeys(PERF_STATS, 0.0)

    def run(self) -> Iterator[Any]:
        """For ever: `RolloutMetrics` of the episodes that have ended, then the batch that is full."""
        while True:
            self.make()
            while self.unreturned:
                output, self.unreturned = self.unreturned[0], self.unreturned[1:]
                yield output

    def next(self) -> Any:
        """The next MultiAgentBatch; the metrics before it are what `get_metrics()` returns."""
        while True:
            self.make()
            # Nothing is called between an output's two places: so no signal is handled there.
            if isinstance(self.unreturned[0], RolloutMetrics):
                self._passed += self.unreturned[:1]
                self.unreturned = self.unreturned[1:]
            else:
                batch, self.unreturned = self.unreturned[0], self.unreturned[1:]
                return batch

    def get_metrics(self) -> list[RolloutMetrics]:
        """Return the metrics of the episodes that have ended, as far as `next()` has come upon them since the last
        call, in order."""
        taken, self._passed = self._passed, []
        return taken

    def make(self) -> None:
        """Sample until `unreturned` has something."""
        while not self.unreturned:
            wanted = self._runner.config.get_rollout_fragment_length() * self._runner.num_envs
            least = wanted // LEAST_SHARE if self._wants_whole else 0
            self._advance(max(wanted - self._n_pending(), least, 1))

    def step(self) -> list[Any]:
        """Step all envs once.

        Returns:
            What has become ready: `RolloutMetrics` of episodes that have ended, and a batch; mostly nothing.
        """
        self._advance(1)
        outputs, self.unreturned = self.unreturned, []
        return outputs

    def episodes_under_way(self) -> set[str]:
        """Ids of episodes that are running, or are not in a batch yet."""
        return self._runner.running_episodes | {id_ for id_, episode in self._episodes.items() if episode.chunks}

    def _n_pending(self) -> int:
        chunks = [chunk for episode in self._episodes.values() for chunk in episode.chunks]
        if self._runner.config.count_steps_by == "env_steps":
            return sum(map(len, chunks))
        return sum(chunk.agent_steps() for chunk in chunks)

    def _advance(self, num_timesteps: int) -> None:
        """Sample `num_timesteps` steps; add metrics and, if one is full, a batch to `unreturned`."""
        if self._building is not None and self._building() is not None:
            raise RunnerBusyError("sample()", "postprocess_trajectory()", True)
        self._sampled += self._runner.sample(num_timesteps=num_timesteps)
        self._take_down()
        config = self._runner.config
        if not self._wants_whole and self._n_pending() < config.get_rollout_fragment_length() * self._runner.num_envs:
            return
        ready = {id_: episode for id_, episode in self._episodes.items() if self._is_ready(episode)}
        chunks = [chunk for episode in ready.values() for chunk in joined(episode.chunks)]
        batches = [self._build(chunks)] if chunks else []
        episodes = self._episodes | {id_: replace(episode, chunks=()) for id_, episode in ready.items()}
        metrics = self._new_metrics()
        # In one step: an interrupt comes before it or after it.
        self.__dict__.update(unreturned=[*self.unreturned, *metrics, *batches], _episodes=episodes, _metrics=[])

    def _is_ready(self, episode: EpisodeUnderWay) -> bool:
        """True if its chunks may become part of a batch."""
        return bool(episode.chunks) and (episode.chunks[-1].is_done or not self._wants_whole)

    def _take_down(self) -> None:
        """Move what was sampled to the episodes under way, all of it at once."""
        episodes, metrics = dict(self._episodes), list(self._metrics)
        for chunk in self._sampled:
            before = episodes.get(chunk.id_) or EpisodeUnderWay.of(chunk.id_)
            if not before.chunks:
                episodes.pop(chunk.id_, None)  # a batch has episodes in the order of the chunks that they begin it with
            episodes[chunk.id_] = after = before.with_chunk(chunk, only_whole=self._wants_whole)
            if chunk.is_done and after.env_t is not None:
                metrics.append(after.metrics(chunk))
        running = self._runner.running_episodes
        kept = {id_: episode for id_, episode in episodes.items() if id_ in running or self._is_ready(episode)}
        self.__dict__.update(_episodes=kept, _metrics=metrics, _sampled=[])

    def _build(self, chunks: list[MultiAgentEpisode]) -> Any:
        """The batch of these chunks, which are pending until it is made: who samples in a hook would get them again."""
        under_way = _Building()
        try:
            self._building = weakref.ref(under_way)  # even an interrupt in `finally` leaves nothing under way
            with exits_as_errors():
                return self._builder.build(chunks, self._episodes)
        finally:
            self._building = None

    def _new_metrics(self) -> list[RolloutMetrics]:
        """Those of ended episodes and failed envs, with the times since the last report."""
        report = self._runner.get_metrics()
        self.perf_stats = {name: report[name] for name in PERF_STATS}
        faulty = [RolloutMetrics.of_failure()] * report["num_env_failures"]
        return [*faulty, *(metrics._replace(perf_stats=self.perf_stats) for metrics in self._metrics)]
