"""Random worlds, configs and calls: RLlib's RolloutWorker and another one must not differ in any."""

import os

import pytest
from rllib.old_stack.fuzz import random_case
from rllib.old_stack.runs import differences, play
from rllib.old_stack.subject import SUBJECT

FUZZ_CASES = int(os.environ.get("FASTMARL_OLD_STACK_CASES", 20))
FIRST_SEED = int(os.environ.get("FASTMARL_OLD_STACK_FIRST_SEED", 0))
BATCHES = 20
MOST_RAISED = 0.2  # 0.15 of the first 20, 0.08 of 300
MOST_LINES = 10
pytestmark = pytest.mark.xdist_group("old stack fuzz")  # one process counts them

played: list[int] = []
raised: dict[int, str] = {}
"""Seeds of cases in which RLlib raises -> its first error. Errors are compared, but few cases should end in one."""


def check(seed: int) -> None:
    """Raises AssertionError with the differences and how to see them again."""
    case = random_case(seed)
    want, got = play(case), play(case, SUBJECT)
    played.append(seed)
    if want.errors and not case.setup.rules.failing_steps:
        raised[seed] = f"{type(want.errors[0]).__name__}: {want.errors[0]!s:.120}"
    lines = [*differences(want, got)]
    again = f"FASTMARL_OLD_STACK_SEED={seed} pytest tests/rllib/test_old_stack_equality_fuzz.py -k alone"
    assert not lines, "\n".join([f"seed {seed}; again: {again}", *lines[:MOST_LINES], repr(case)])


@pytest.mark.parametrize("batch", range(BATCHES))
def test_batch(batch: int) -> None:
    for seed in range(FIRST_SEED + batch, FIRST_SEED + FUZZ_CASES, BATCHES):
        check(seed)


def test_few_raised() -> None:
    """The worlds keep to what RLlib takes, so that batches were compared."""
    assert len(raised) <= MOST_RAISED * max(len(played), BATCHES), raised


def test_alone() -> None:
    """Runs one case again, alone."""
    check(int(os.environ.get("FASTMARL_OLD_STACK_SEED", FIRST_SEED)))
