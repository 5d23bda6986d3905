"""Metrics of a group: runner counters summed over returned parts, and counts of lost and replaced runners."""

from typing import Any

from fastmarl.core.errors.states import whole_number
from fastmarl.core.modules.multi import MultiRLModule
from fastmarl.distributed.fleet import COUNTED, Fleet
from fastmarl.distributed.parts import SamplePart
from fastmarl.runner.loop.runner_metrics import RunnerMetrics

LIFETIME = ("num_env_steps_sampled_lifetime", "lifetime_counters")  # keys of the group state


class GroupMetrics:
    """Sums the counter increments of returned parts.

    Args:
        window: Number of episodes for means, minima and maxima.

    Attributes:
        seconds_waited: Time spent in sampling methods since the last report.
    """

    def __init__(self, window: int):
        self._window = window
        self._metrics = RunnerMetrics(window)
        self._seq_no_of_part = 0
        self.seconds_waited = 0.0

    def add(self, part: SamplePart) -> None:
        self._metrics.merge(part.increment)
        self._seq_no_of_part = part.weights_seq_no

    def report(self, fleet: Fleet, module: MultiRLModule) -> dict[str, Any]:
        """Return the metrics and reset their counts; see `EnvRunnerGroup.get_metrics()`."""
        report = self._metrics.report(self._seq_no_of_part, module)
        report |= {
            **fleet.new,
            "seconds_waited": self.seconds_waited,
            "num_healthy_env_runners": fleet.num_ready,
        }
        fleet.new, self.seconds_waited = dict.fromkeys(COUNTED, 0), 0.0
        return report

    def get_state(self) -> dict[str, Any]:
        """Return the counters over the lifetime of the group."""
        return dict(zip(LIFETIME, (self._metrics.lifetime.env_steps, self._metrics.get_state()), strict=True))

    def check_state(self, state: dict[str, Any]) -> None:
        """Check that `set_state()` accepts this state.

        Raises:
            ConfigError: If it does not.
        """
        env_steps, counters = (state[name] for name in LIFETIME)
        whole_number(LIFETIME[0], env_steps)
        self._metrics.check_state(counters)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the lifetime counters and reset all others."""
        env_steps, counters = (state[name] for name in LIFETIME)
        self._metrics = RunnerMetrics(self._window)
        self._metrics.set_state(counters)
        self._metrics.lifetime.env_steps = int(env_steps)
