"""The task, the hyperparameters and the clock that all children share."""

import json
import sys
import time

TASK, LIMIT, NUM_ENVS = "Foraging-8x8-2p-2f-coop-v3", 50, 10
EPOCHS, HIDDENS, LEARNING_RATE, ADAM_EPS = 4, (128, 128), 3e-4, 1e-8
GAMMA, LAMBDA, CLIP, ENTROPY_COEFF, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.001, 10.0
SKIPPED = 3  # first updates, in which caches fill and functions are compiled


class Meter:
    """Measures CPU time of sampling and learning; `is_over` after the given number of updates.

    Args:
        updates: Number of updates to measure.
        pids: Other processes whose CPU time counts.
    """

    def __init__(self, updates, pids=()):
        self._updates = updates + SKIPPED
        self._clocks = [(~pid << 3) | 2 for pid in pids]  # Linux's CPU clocks of other processes
        self._rows, self._last = [], self._now()

    def _now(self):
        return time.process_time() + sum(time.clock_gettime(clock) for clock in self._clocks)

    def sampled(self, env_steps):
        now = self._now()
        self._rows.append([env_steps, now - self._last, 0.0])
        self._last = now

    def learned(self):
        now = self._now()
        self._rows[-1][2] = now - self._last
        self._last = now

    @property
    def is_over(self):
        return len(self._rows) >= self._updates

    def report(self):
        """Print microseconds per env step, as a line of JSON."""
        steps, sampling, learning = map(sum, zip(*self._rows[SKIPPED:], strict=True))
        print(json.dumps({"sampling": sampling / steps * 1e6, "learning": learning / steps * 1e6}), flush=True)


def updates():
    return int(sys.argv[1])
