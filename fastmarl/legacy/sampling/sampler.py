"""The input reader of a worker that samples itself."""

from typing import Any

from fastmarl.legacy.files.input_reader import InputReader
from fastmarl.legacy.sampling.env_runner_v2 import EnvRunnerV2
from fastmarl.legacy.sampling.episode_tallies import RolloutMetrics


class Sampler(InputReader):
    """Reads batches from an `EnvRunnerV2`, and keeps the metrics that come between them."""

    def __init__(self, env_runner: EnvRunnerV2):
        self._env_runner = env_runner
        self._metrics: list[RolloutMetrics] = []

    def next(self) -> Any:
        """The next MultiAgentBatch."""
        runner = self._env_runner
        while True:
            runner.make()
            # Nothing is called between an output's two places: so no signal is handled there.
            if isinstance(runner.unreturned[0], RolloutMetrics):
                self._metrics += runner.unreturned[:1]
                runner.unreturned = runner.unreturned[1:]
            else:
                batch, runner.unreturned = runner.unreturned[0], runner.unreturned[1:]
                return batch

    def get_metrics(self) -> list[RolloutMetrics]:
        """Those of the episodes that have ended since the last call, in order."""
        taken, self._metrics = self._metrics, []
        return taken
