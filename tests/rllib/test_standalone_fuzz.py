"""Random envs, options and calls: the standalone runner must hand out what RLlib's own runner does.

Data chunk by chunk, reports, callbacks with their arguments, actions of envs, and states. What differs on purpose
is listed in `standalone/known.py`. No case may fail in RLlib.
"""

from pathlib import Path

import pytest
from rllib.standalone.cases import random_case
from rllib.standalone.known import MENDED, ON_PURPOSE, unexplained
from rllib.standalone.runs import play_ours, play_rllib
from support.random_cases import RandomCases

CASES = RandomCases(usual=3)
BATCHES = 12
TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def check(seed: int) -> None:
    case = random_case(seed)
    lines = [f"{kind}: {text}" for kind, text in unexplained(case, play_rllib(case), play_ours(case))]
    CASES.assert_none(lines, seed, case)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_batch(batch: int) -> None:
    for seed in CASES.batch(batch, BATCHES):
        check(seed)


def test_exceptions_are_proven() -> None:
    for entry in (*MENDED.values(), *ON_PURPOSE):
        file, _, name = entry.proof.partition("::")
        assert f"\ndef {name}(" in (TESTS / file).read_text(), entry


def test_alone() -> None:
    """The case of FASTMARL_FUZZ_SEED, to see it again."""
    check(CASES.alone)
