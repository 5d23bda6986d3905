"""RLlib's RolloutWorker and another one, under the same seeds: batches, metrics, calls and states are equal."""

import pytest
from ray.rllib.evaluation.rollout_worker import RolloutWorker as RLlibWorker
from rllib.old_stack.broken import BROKEN
from rllib.old_stack.cases import CASES, SENSITIVE
from rllib.old_stack.expected import wrong_path
from rllib.old_stack.runs import Run, differences, play
from support.exhaustive import params

from fastmarl.rllib import RolloutWorker

MOST_LINES = 20


# They reach each line and branch of fastmarl/rllib/old_stack that all cases reach, and each form of flags and ends.
# A new case that reaches others belongs to them.
KEPT = """
twenty agents
turns
no agent at times
agents die with last words
agents die without last words
only all
all flags
truncated
each truncated
both ends
stillborn
episodes of one step
dead come back
takes actions
rewards of all kinds
rewards are arrays
a reset fails
envs that do not close
no flag for all
not for training
observations leave their space
odd rewards
rewards are rows
complete episodes, by agent steps
compressed
written to files
no env
observations: f64
observations: u8
observations: discrete
observations: multibinary
observations: nested
actions: tuple
actions not flat: dict
rewards clipped by sign
rewards clipped
no preprocessors by preference
mean and deviation
model: attention
model: foreseeing
model: sequences
lstm beside none
policy: sampling
policy: misnaming
policy: nested
policy: counting
policy: failing
policy: noting, with a state
exploration: random
no exploration
mapping: raising
mapping: unknown
state set
changed: an agent connector more
changed: an action connector more
changed: a hook
changed: connectors reset
envs asked
global time
weights of one policy
learns
callbacks: collectors
callbacks: raising
callbacks: raising at ends
overruled
""".strip().splitlines()
assert {*KEPT} <= {*CASES}


@pytest.mark.parametrize("name", params(CASES, KEPT))
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
