"""Counter increments, for aggregating the metrics of several runners."""

from fastmarl.core.runner.metrics import Increment
from fastmarl.core.runner.runner import MultiAgentEnvRunner


def begin_increments(runner: MultiAgentEnvRunner) -> None:
    """Of a runner that is just made: the first increment has what its callbacks have logged when envs were made."""
    runner._resources.counts.logger.begin_journal()


def take_increment(runner: MultiAgentEnvRunner) -> Increment:
    """See `RunnerMetrics.take_increment()`."""
    return runner._resources.counts.take_increment()
