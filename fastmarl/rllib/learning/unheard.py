"""Metrics that the next minibatch would replace need not be logged."""

from typing import Any


class _Nobody:
    """In place of a MetricsLogger."""

    def log_dict(self, *arguments: Any, **options: Any) -> None:
        """Nothing."""

    log_value = log_dict


class Unheard:
    """A learner logs nothing until the end of the `with` statement.

    Args:
        learner: RLlib's.
        is_heard: whether it does log.
    """

    def __init__(self, learner: Any, is_heard: bool):
        self._learner = learner
        self._metrics = None if is_heard else learner.metrics

    def __enter__(self) -> None:
        if self._metrics is not None:
            self._learner.metrics = _Nobody()

    def __exit__(self, *exception: object) -> None:
        if self._metrics is not None:
            self._learner.metrics = self._metrics
