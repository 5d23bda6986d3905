"""Random envs, options and calls: the standalone runner must hand out what RLlib's own runner does.

Data chunk by chunk, reports, callbacks with their arguments, actions of envs, and states. What differs on purpose
is listed in `standalone/known.py`. No case may fail in RLlib.
"""

import os
from pathlib import Path

import pytest
from rllib.standalone.cases import random_case
from rllib.standalone.known import MENDED, ON_PURPOSE, unexplained
from rllib.standalone.runs import play_ours, play_rllib

FUZZ_CASES = int(os.environ.get("FASTMARL_FUZZ_CASES", 12))
FIRST_SEED = int(os.environ.get("FASTMARL_FUZZ_FIRST_SEED", 0))
BATCHES = 12
TESTS = Path(__file__).parents[1]
MOST_LINES = 10
pytestmark = pytest.mark.slow


def check(seed: int) -> None:
    """Raises AssertionError with the differences and how to see them again."""
    case = random_case(seed)
    lines = [f"{kind}: {text}" for kind, text in unexplained(case, play_rllib(case), play_ours(case))]
    again = f"FASTMARL_FUZZ_SEED={seed} pytest tests/rllib/test_standalone_fuzz.py::test_alone"
    assert not lines, "\n".join([f"seed {seed}; again: {again}", *lines[:MOST_LINES], repr(case)])


@pytest.mark.parametrize("batch", range(BATCHES))
def test_batch(batch: int) -> None:
    for seed in range(FIRST_SEED + batch, FIRST_SEED + FUZZ_CASES, BATCHES):
        check(seed)


def test_exceptions_are_proven() -> None:
    for entry in (*MENDED.values(), *ON_PURPOSE):
        file, _, name = entry.proof.partition("::")
        assert f"\ndef {name}(" in (TESTS / file).read_text(), entry


def test_alone() -> None:
    """The case of FASTMARL_FUZZ_SEED, to see it again."""
    check(int(os.environ.get("FASTMARL_FUZZ_SEED", FIRST_SEED)))
