"""Random worlds, configs and calls: RLlib's runner and ours must not differ in any.

Where RLlib needs a correction, the run is compared with RLlib's own loop over our episodes; and, as in all cases, with
what follows from what the envs said (`witness.py`). Calls that change how agents act within an episode are compared
with that loop from the start.
"""

import os
from collections.abc import Callable

import pytest
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from rllib.differential.fuzz import piece_case, random_case, rewriting_case, switching_case
from rllib.differential.known import CorrectedLoop, unexpected
from rllib.differential.rewriting import rewriting
from rllib.differential.runs import Case, Run, play, wrong_path
from rllib.differential.witness import findings, witnessed

from fastmarl.rllib import MultiAgentEnvRunner

FUZZ_CASES = int(os.environ.get("FASTMARL_FUZZ_CASES", 10))
FIRST_SEED = int(os.environ.get("FASTMARL_FUZZ_FIRST_SEED", 0))
BATCHES = 20
pytestmark = pytest.mark.xdist_group("fuzz")  # one process counts them
MOST_SKIPPED = 0.05
MOST_LINES = 10

played: list[tuple[str, int]] = []
skipped: dict[tuple[str, int], str] = {}
"""Kind and seed of cases in which RLlib itself raises -> its error."""


def check(seed: int, make_case: Callable[[int], Case] = random_case) -> None:
    """Raises AssertionError with the differences and how to see them again."""
    case = make_case(seed)
    want = play(case)
    if not was_played(make_case.__name__, seed, want):
        return
    got = play(witnessed(case), MultiAgentEnvRunner)
    # What pieces make of actions and observations, only RLlib's run can tell.
    found = findings(case, got) if make_case is random_case else ()
    lines = [*found, *unexpected(case, want, got), *wrong_path(case, got)]
    again = f"FASTMARL_FUZZ_SEED={seed} pytest tests/rllib/test_equality_fuzz.py -k alone"
    order = "the order of string ids depends on PYTHONHASHSEED"
    if lines:
        text = "\n".join([f"seed {seed}; again: {again} ({order})", *lines[:MOST_LINES], repr(case)])
        raise AssertionError(text) from got.error


def was_played(kind: str, seed: int, want: Run) -> bool:
    """Note the case, and whether RLlib raises in it."""
    played.append((kind, seed))
    if want.error is not None:
        skipped[kind, seed] = f"{type(want.error).__name__}: {want.error}"
    return want.error is None


@pytest.mark.parametrize("batch", range(BATCHES))
def test_batch(batch: int) -> None:
    for seed in range(FIRST_SEED + batch, FIRST_SEED + FUZZ_CASES, BATCHES):
        check(seed)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + FUZZ_CASES))
def test_pieces_with_a_part_in_batches(seed: int) -> None:
    check(seed, piece_case)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + FUZZ_CASES // 4))
def test_modes_change_within_episodes(seed: int) -> None:
    case = switching_case(seed)
    want = play(case, CorrectedLoop)
    if not was_played(switching_case.__name__, seed, want):
        return
    got = play(witnessed(case), MultiAgentEnvRunner)
    lines = [*findings(case, got), *unexpected(case, want, got), *wrong_path(case, got)]
    assert not lines, "\n".join([*lines[:MOST_LINES], repr(case)])


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + FUZZ_CASES // 2))
def test_values_that_callbacks_and_subclasses_rewrite(seed: int) -> None:
    """It counts in the metrics, whenever it was written. What envs sent says nothing about these episodes."""
    case = rewriting_case(seed)
    classes = RLlibEnvRunner, MultiAgentEnvRunner, CorrectedLoop
    theirs, ours, loop = (rewriting(each, seed) if case.is_subclass else each for each in classes)
    want = play(case, theirs)
    if not was_played(rewriting_case.__name__, seed, want):
        return
    got = play(case, ours)
    lines = [*unexpected(case, want, got, loop), *wrong_path(case, got)]
    if lines:
        raise AssertionError("\n".join([*lines[:MOST_LINES], repr(case)])) from got.error


def test_few_were_skipped() -> None:
    """The worlds keep to what RLlib takes, so that something was compared."""
    assert len(skipped) <= MOST_SKIPPED * max(len(played), BATCHES), skipped


def test_alone() -> None:
    """Runs one case again, in which RLlib must not raise."""
    seed = int(os.environ.get("FASTMARL_FUZZ_SEED", FIRST_SEED))
    check(seed)
    assert (random_case.__name__, seed) not in skipped
