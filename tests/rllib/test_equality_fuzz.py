"""Random worlds, configs and calls: RLlib's runner and ours must not differ in any.

Where RLlib needs a correction, the run is compared with RLlib's own loop over our episodes; and, as in all cases, with
what follows from what the envs said (`witness.py`). Calls that change how agents act within an episode are compared
with that loop from the start.
"""

from collections.abc import Callable

import pytest
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from rllib.differential.fuzz import piece_case, random_case, rewriting_case, switching_case
from rllib.differential.known import CorrectedLoop, unexpected
from rllib.differential.rewriting import rewriting
from rllib.differential.runs import Case, play, wrong_path
from rllib.differential.witness import findings, witnessed
from support.random_cases import RandomCases

from fastmarl.rllib import MultiAgentEnvRunner

CASES = RandomCases(usual=3)
BATCHES = 20
pytestmark = pytest.mark.xdist_group("fuzz")  # one process counts them
MOST_RAISED = 0.05


def check(seed: int, make_case: Callable[[int], Case] = random_case) -> None:
    case = make_case(seed)
    want = play(case)
    if not CASES.was_played(make_case, seed, want.error):
        return
    got = play(witnessed(case), MultiAgentEnvRunner)
    # What pieces make of actions and observations, only RLlib's run can tell.
    found = findings(case, got) if make_case is random_case else ()
    lines = [*found, *unexpected(case, want, got), *wrong_path(case, got)]
    CASES.assert_none(lines, seed, case, got.error)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_batch(batch: int) -> None:
    for seed in CASES.batch(batch, BATCHES):
        check(seed)


@pytest.mark.parametrize("seed", CASES.seeds())
def test_pieces_with_a_part_in_batches(seed: int) -> None:
    check(seed, piece_case)


@pytest.mark.parametrize("seed", CASES.seeds(share=4))
def test_modes_change_within_episodes(seed: int) -> None:
    case = switching_case(seed)
    want = play(case, CorrectedLoop)
    if not CASES.was_played(switching_case, seed, want.error):
        return
    got = play(witnessed(case), MultiAgentEnvRunner)
    lines = [*findings(case, got), *unexpected(case, want, got), *wrong_path(case, got)]
    CASES.assert_none(lines, seed, case, got.error)


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
@pytest.mark.parametrize("seed", CASES.seeds(share=2))
def test_values_that_callbacks_and_subclasses_rewrite(seed: int) -> None:
    """It counts in the metrics, whenever it was written. What envs sent says nothing about these episodes."""
    case = rewriting_case(seed)
    classes = RLlibEnvRunner, MultiAgentEnvRunner, CorrectedLoop
    theirs, ours, loop = (rewriting(each, seed) if case.is_subclass else each for each in classes)
    want = play(case, theirs)
    if not CASES.was_played(rewriting_case, seed, want.error):
        return
    got = play(case, ours)
    lines = [*unexpected(case, want, got, loop), *wrong_path(case, got)]
    CASES.assert_none(lines, seed, case, got.error)


def test_few_were_skipped() -> None:
    CASES.assert_few_raised(MOST_RAISED, BATCHES)


def test_alone() -> None:
    """Runs one case again, in which RLlib must not raise."""
    check(CASES.alone)
    assert (random_case.__name__, CASES.alone) not in CASES.raised
