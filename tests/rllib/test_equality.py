"""RLlib's runner and ours, one after the other under the same seeds: episodes, metrics, calls and states are equal."""

import pytest
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from rllib.differential.broken import BROKEN
from rllib.differential.cases import CASES, METRICS, both, case, world
from rllib.differential.compare import Comparison, Report
from rllib.differential.known import unexpected
from rllib.differential.piece_cases import PIECE_CASES
from rllib.differential.runs import Run, Sample, differences, play, wrong_path
from rllib.differential.witness import findings, witnessed
from support.exhaustive import params

from fastmarl.rllib import MultiAgentEnvRunner

MOST_LINES = 20


ALL_CASES = {**CASES, **{f"piece {name}": each for name, each in PIECE_CASES.items()}}
# They reach each line and branch of fastmarl/rllib that all cases reach, and what only compiled code distinguishes. A
# new case that reaches more belongs to them.
KEPT = """
1 agents, 1 envs
100 agents, 1 envs
late, strings
late, mixed
deaths unseen, ints
few at reset, ints
stillborn, ints
stillborn that come back, ints
truncated one by one, ints
both ends, ints
only __all__, ints
flags repeated, ints
numpy flags, ints
no __all__ in truncateds, ints
one step each, ints
rewards float32
rewards int64
rewards array
rewards minus_zero
rewards none
rewards of all kinds
infos reused
infos empty
episodes, no seed
agent_steps, complete
explore switches
random episodes
no episodes
metrics read twice
new module
lookback 0
lists
callbacks at ends
counters in callbacks, wild
renumberer in callbacks, wild
arrays reused
failures 2
failure without restart
having steps comes later
arrival comes later
object comes later
remapper, mapping by id, late
mapping by all there is, nested
obs u8, own module
obs discrete, flattened
obs multibinary, own module
obs dict, own module
obs tuple, own module
obs pixels
action scalar
action tuple, no exploration
module heuristic
lstm, random at first
module memory, single steps
own, longer
mean_std own, curious
own, as a piece previous flatten
own, joint frames
mean_std, failures
previous flatten, numbers in callbacks
flatten own, curious, rewards and actions in callbacks
own, obs changing
std, episodes
frozen_mean_std, episodes
flatten some
frames, then connector added
pendulum
tag
battle
piece sticky, multidiscrete
piece epsilon, writer in callbacks
piece own actions, noting
piece for env, last, noting
piece noting at 4
piece bonus, memory, bonus
piece bonus of all, bonus
piece own observations, bonus
piece noting, at random first
piece both ways, whole, then actions clipped
""".strip().splitlines()
assert {*KEPT} <= {*ALL_CASES}


@pytest.mark.parametrize("name", params(ALL_CASES, KEPT))
def test_equal(name: str) -> None:
    chosen = ALL_CASES[name]
    want, got = play(chosen, RLlibEnvRunner), play(chosen, MultiAgentEnvRunner)
    if chosen.raises is None and want.error is not None:
        raise want.error
    assert type(want.error).__name__ == (chosen.raises or "NoneType")
    lines = [*unexpected(chosen, want, got), *wrong_path(chosen, got)]
    if lines:
        raise AssertionError("\n".join(lines[:MOST_LINES])) from got.error
    assert chosen.raises or any(len(episode) for episode in want.episodes), "compared nothing"


def test_the_fast_loop_is_there() -> None:
    """Two equal slow runners would prove nothing."""
    assert play(SENSITIVE, MultiAgentEnvRunner).is_accelerated


SENSITIVE = case(
    world(4, style="sparse", dies=0.1, pays_waiting=0.5, rewards=("float", "zero"), infos="some"),
    (Sample(num_timesteps=40), METRICS, Sample(num_timesteps=9), METRICS),
    num_envs=3,
)
"""A case in which everything occurs that the broken runners spoil."""


@pytest.fixture(scope="module")
def sensitive_run() -> Run:
    return play(SENSITIVE)


@pytest.mark.parametrize("name", BROKEN)
def test_comparison_sees(name: str, sensitive_run: Run) -> None:
    """The checker is checked."""
    got = play(SENSITIVE, BROKEN[name])
    assert got.error is None
    assert any(differences(sensitive_run, got))


@pytest.mark.parametrize("odd", ["none", "another piece", "a counter"])
def test_comparison_sees_values_that_rllib_logs_in_the_wrong_place(odd: str) -> None:
    """27: nothing but the timers of the pipeline of which RLlib mistakes the name."""
    logger, place = MetricsLogger(root=False), "env_to_module_connector"
    pieces = {"connector_pipeline_timer": "ema", "timers connectors flatten": "ema"}
    for at in ((place,), ()):
        for name, reduce in pieces.items():
            logger.log_value((*at, *name.split()), 0.5, reduce=reduce)
    if odd != "none":
        logger.log_value(("timers", "connectors", odd), 0.5, reduce="sum" if odd == "a counter" else "ema")
    if odd == "a counter":
        logger.log_value((place, "timers", "connectors", odd), 0.5)
    want = Report(logger.reduce())
    got = Report({place: want[place]})
    assert bool([*Comparison()(want, got, "call 1")]) == (odd != "none")


SEEN_BY_WITNESS = (
    "an info's content",
    "lookback",
    "a column less",
    "agent time",
    "hanging rewards",
    "terminated",
    "begin of the chunk",
    "new ids",
    "one id",
    "order of episodes",
    "an episode less",
    "a sent action",
)


@pytest.fixture(scope="module")
def found_in_rllib() -> set[str]:
    return {*findings(SENSITIVE, play(witnessed(SENSITIVE)))}


@pytest.mark.parametrize("name", SEEN_BY_WITNESS)
def test_witness_sees(name: str, found_in_rllib: set[str]) -> None:
    assert {*findings(SENSITIVE, play(witnessed(SENSITIVE), BROKEN[name]))} - found_in_rllib


def test_comparison_sees_the_time_that_modules_receive() -> None:
    """Modules that explore less with time depend on it."""
    noting = case(modules=both("noting"))

    class Late(RLlibEnvRunner):
        def sample(self, **kwargs):
            self.num_env_steps_sampled_lifetime += 1
            try:
                return super().sample(**kwargs)
            finally:
                self.num_env_steps_sampled_lifetime -= 1

    assert any("tape of forward" in line for line in differences(play(noting), play(noting, Late)))


def test_rllib_equals_itself(sensitive_run: Run) -> None:
    lines = [*differences(sensitive_run, play(SENSITIVE))]
    hanging = ("_hanging_rewards_begin", ".get_return(True)")  # 58: expected of the second run are right ones
    assert not [line for line in lines if not any(name in line for name in hanging)]
