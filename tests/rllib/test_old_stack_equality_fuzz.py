"""Random worlds, configs and calls: RLlib's RolloutWorker and another one must not differ in any."""

import pytest
from rllib.old_stack.fuzz import random_case
from rllib.old_stack.runs import differences, play
from support.random_cases import RandomCases

from fastmarl.rllib import RolloutWorker

CASES = RandomCases(usual=6, prefix="FASTMARL_OLD_STACK")
BATCHES = 20
MOST_RAISED = 0.2  # 0.05 of the first 20, 0.06 of 300
pytestmark = pytest.mark.xdist_group("old stack fuzz")  # one process counts them


def check(seed: int) -> None:
    """Errors are compared, but few cases should end in one."""
    case = random_case(seed)
    want, got = play(case), play(case, RolloutWorker)
    CASES.was_played(random_case, seed, want.errors[0] if want.errors and not case.setup.rules.failing_steps else None)
    CASES.assert_none([*differences(want, got)], seed, case)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_batch(batch: int) -> None:
    for seed in CASES.batch(batch, BATCHES):
        check(seed)


def test_few_raised() -> None:
    CASES.assert_few_raised(MOST_RAISED, BATCHES)


def test_alone() -> None:
    """Runs one case again, alone."""
    check(CASES.alone)
