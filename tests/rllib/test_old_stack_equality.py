"""RLlib's RolloutWorker and another one, under the same seeds: batches, metrics, calls and states are equal."""

import pytest
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from rllib.old_stack.broken import BROKEN
from rllib.old_stack.cases import CASES, SENSITIVE
from rllib.old_stack.expected import wrong_path
from rllib.old_stack.runs import Run, differences, play
from support.exhaustive import covering, params

from fastmarl.rllib import RolloutWorker

MOST_LINES = 20


@pytest.mark.parametrize("name", params(CASES, covering(CASES)))
def test_equal(name: str) -> None:
    case = CASES[name]
    want, got = play(case), play(case, RolloutWorker)
    if case.raises is None and want.errors:
        raise want.errors[0]
    assert case.raises is None or case.raises in {type(error).__name__ for error in want.errors}, want.errors
    lines = [*differences(want, got), *wrong_path(name, got)]
    assert not lines, "\n".join(lines[:MOST_LINES])
    assert case.raises or want.notes["env"], "compared nothing"


@pytest.fixture(scope="module")
def sensitive_run() -> Run:
    return play(SENSITIVE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", BROKEN)
def test_comparison_sees(name: str, sensitive_run: Run) -> None:
    """The checker is checked."""
    worker_class, seen_as = BROKEN[name]
    got = play(SENSITIVE, worker_class)
    assert not got.errors, got.errors
    lines = [*differences(sensitive_run, got)]
    assert [line for line in lines if seen_as in line], lines[:MOST_LINES]


def test_rllib_equals_itself(sensitive_run: Run) -> None:
    assert not sensitive_run.errors
    assert [*differences(sensitive_run, play(SENSITIVE, RLlibWorker))] == []
