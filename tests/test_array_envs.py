"""Batches of envs that step in arrays: what is recorded is what the same envs give one by one."""

import random

import pytest
from reference.compare import SideBySide, assert_same_chunk
from reference.worlds import make_world


@pytest.mark.parametrize("group", range(6))
def test_chunks_actions_and_counters_equal_the_oracle(group):
    for seed in range(50 * group, 50 * group + 50):
        world = make_world(random.Random(seed))
        try:
            both = SideBySide(world, batched=True)
            for chunk, expected in both.run():
                assert_same_chunk(world, chunk, expected)
            both.assert_same_actions()
            both.assert_same_metrics()
        except Exception as error:
            error.add_note(f"world: make_world(random.Random({seed}))")
            raise
