"""What a runner has counted, for who reports of several runners."""

from fastmarl.runner.metrics import Increment
from fastmarl.runner.runner import MultiAgentEnvRunner


def take_increment(runner: MultiAgentEnvRunner) -> Increment:
    """See `RunnerMetrics.take_increment()`."""
    return runner._resources.counts.take_increment()
