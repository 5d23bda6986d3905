"""Workers that are stopped after their test."""

import pytest
from support.legacy import config_with

from fastmarl.legacy import RolloutWorker


@pytest.fixture
def make():
    """Makes workers, and stops them."""
    made = []

    def make_worker(arguments=None, **options):
        made.append(RolloutWorker(config=config_with(**options), **(arguments or {})))
        return made[-1]

    yield make_worker
    for worker in made:
        worker.stop()
