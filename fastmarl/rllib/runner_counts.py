"""How many runners sample the fast way, and why the others don't: counts of runners in an Algorithm's results."""

from typing import Any

from ray.rllib.utils.metrics.stats import LifetimeSumStats

ACCELERATED = "num_accelerated_env_runners"
SLOW_PATH = "num_slow_path_env_runners"  # by code of a reason
RUNNER_COUNTS = (ACCELERATED, SLOW_PATH)


class RunnerCount(LifetimeSumStats):
    """1 or 0 for a runner; above runners, the sum over those that have reported since the last result.

    RLlib's own sums add up all reports, of which there may be several by one runner for one result. This one knows who
    reports. To a checkpoint it looks like RLlib's class, so that this can be restored without fastmarl. Where one has
    been, RLlib's class adds up what reports change: `_lifetime_sum` of a report is the difference from the one before.

    Attributes:
        runners: worker index -> its newest count.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.runners: dict[int, int] = {}
        self._told = 0
        self._is_outdated = False

    def note(self, worker_index: int, count: int) -> None:
        """Set a runner's own count."""
        self.runners = {worker_index: count}

    def push(self, value: Any) -> None:
        """Nothing: see `note()`."""

    def merge(self, incoming_stats: list[Any]) -> None:
        """Take over what runners report. The first reports after a result take the place of all those before it."""
        if self._is_outdated:
            self.runners, self._is_outdated = {}, False
        for each in incoming_stats:
            self.runners.update(each.runners)
        self.latest_merged = sum(sum(each.runners.values()) for each in incoming_stats)

    def peek(self, compile: bool = True, latest_merged_only: bool = False) -> Any:
        """The sum."""
        total = self.latest_merged or 0 if latest_merged_only else sum(self.runners.values())
        return total if compile else [total]

    def reduce(self, compile: bool = True) -> Any:
        """The sum, or a report of it. It holds until there are newer reports."""
        total = sum(self.runners.values())
        self._is_outdated = not self.is_leaf
        if compile:
            return total
        report = self.clone()
        report.runners, report._lifetime_sum = dict(self.runners), total - self._told
        self._told = total
        return report

    def get_state(self) -> dict[str, Any]:
        """Of RLlib's class, before any report."""
        return {**super().get_state(), "lifetime_sum": 0}


class RunnerCounts:
    """A runner's own counts.

    Args:
        worker_index: of the runner.
    """

    def __init__(self, worker_index: int):
        self._worker_index = worker_index
        self._accelerated = RunnerCount()
        self._slow_path: dict[str, RunnerCount] = {}

    def log(self, logger: Any, is_accelerated: bool, codes: set[str]) -> None:
        """Put the counts into a runner's logger. Codes that were seen before and aren't any more have 0."""
        for code in codes - self._slow_path.keys():
            self._slow_path[code] = RunnerCount()
        self._accelerated.note(self._worker_index, int(is_accelerated))
        logger.stats[ACCELERATED] = self._accelerated
        for code, count in self._slow_path.items():
            count.note(self._worker_index, int(code in codes))
            logger.stats.setdefault(SLOW_PATH, {})[code] = count
