"""The frozen list: what differs from RLlib's runner, and why. All else must be equal.

Where RLlib records wrongly, a difference is of one of the kinds in MENDED, and everything must equal a run of RLlib's
own loop over corrected episodes. That these equal RLlib's, defects aside, has tests of its own. What is in ON_PURPOSE
is computed from RLlib's run where it says so, and else no case asks for it.
"""

from typing import NamedTuple

from rllib.differential import known
from rllib.standalone.cases import Case
from rllib.standalone.compare import Finding
from rllib.standalone.judge import differences
from rllib.standalone.runs import Run, play_rllib


class Entry(NamedTuple):
    """A difference, why it is there, and the test that holds it (in tests/)."""

    what: str
    why: str
    proof: str


_FIXES = "rllib/test_rllib_episode_fixes.py"
_LOST = Entry(
    "an agent that ends unobserved right after a cut keeps its step: in chunks, returns, reports, callbacks",
    "08: RLlib loses it",
    f"{_FIXES}::test_08_an_agent_that_ends_unobserved_after_a_cut_keeps_its_step",
)
_LATE = Entry(
    "env steps of late joiners in later chunks",
    "14: RLlib counts them from the episode's begin",
    f"{_FIXES}::test_14_late_joiners_are_found_at_their_own_steps",
)
MENDED = {
    "flags": Entry(
        "truncated agents are not terminated",
        "01, 45: RLlib terminates them",
        f"{_FIXES}::test_01_a_time_limit_does_not_terminate",
    ),
    "env_ts": _LATE,
    "lookback": _LATE,
    "action_logp": Entry(
        "digits behind the point of recurrent modules, where a column begins without exploration",
        "63: RLlib cuts them off",
        "rllib/test_column_dtypes.py::test_log_probabilities_of_a_recurrent_module_stay_floats",
    ),
    **dict.fromkeys(("agents", "counts", "return", "callbacks", "metrics"), _LOST),
}
"""Kind of finding -> its entry."""

ON_PURPOSE = (
    # Computed in compare.py.
    Entry(
        "no action_logp without exploration, or NaN between others",
        "39: RLlib's are zeros, in wrong shapes",
        "core/test_runner.py::test_explore_off_takes_the_most_likely_action",
    ),
    Entry(
        "the state in which a recurrent module acted is a column",
        "batches of sequences begin with it",
        "core/test_batches.py::test_the_state_of_a_sequence_is_that_of_its_first_step",
    ),
    Entry(
        "weights_seq_no is a column of every module",
        "RLlib drops it where a module returns actions alone",
        "core/test_runner.py::test_weights_number_is_recorded_with_each_action_and_random_actions_mix",
    ),
    Entry(
        "where a last observation stands in: the info is that of the step, previous actions stay, and so does the map",
        "docs/episodes.md, docs/connectors.md",
        "core/test_connector_state.py::test_a_repeated_last_observation_is_the_record_of_the_one_before",
    ),
    Entry(
        "the lookback is the horizon's, and that of FrameStacking",
        "RLlib's is as long for all as for the agent that has waited longest",
        "core/test_store.py::test_carried_matches_the_lists",
    ),
    # Computed in judge.py.
    Entry(
        "an env is reset at once, maybe in the call before",
        "RLlib resets it in the next step of the others",
        "core/test_runner.py::test_every_reset_has_a_seed_of_its_own_and_fresh_episodes_are_not_reset_again",
    ),
    Entry(
        "reports count actions, cover the last episodes, and name the weights in use",
        "docs/metrics.md",
        "rllib/test_api_table.py::test_rows_hold_unless_there_is_a_reason",
    ),
    Entry(
        "the runner counts its own env steps",
        "42: RLlib's waits for an Algorithm to do it",
        "core/test_config_changes.py::test_t_of_exploration_goes_on_in_a_runner_that_takes_weights",
    ),
    # Given to RLlib's runner in other words, in worlds.py.
    Entry(
        "rewards before the first action are in the first transition",
        "RLlib drops them",
        "core/test_building.py::test_rewards_before_the_first_action_belong_to_the_first_transition",
    ),
    # Not asked for, in cases.py.
    Entry(
        "an older number of weights is not taken down",
        "docs/evaluate_save_restore.md",
        "core/test_runner_state.py::test_an_older_number_of_weights_is_neither_taken_nor_stamped",
    ),
    Entry(
        "make_module() drops running episodes",
        "recurrent states of other modules fit nothing",
        "core/test_config_changes.py::test_modules_are_of_the_config_at_make_module",
    ),
    Entry(
        "num_episodes returns those that begin first",
        "59: RLlib's are those that end first",
        "core/test_goals.py::test_an_env_that_has_delivered_is_not_stepped_on",
    ),
    Entry(
        "the start of Discrete actions is added",
        "28: RLlib's envs get 0 to n-1",
        "core/test_env_actions.py::test_choices_begin_with_their_start",
    ),
    Entry(
        "connectors see previous steps of waiting agents, and stacked frames, over cuts",
        "RLlib's see zeros where its lookback ends",
        "core/test_connectors.py::test_previous_actions_and_rewards",
    ),
    Entry(
        "observations by PrevActionsPrevRewards have the rewards before callbacks of their step have written",
        "callbacks are shown the connectors' outputs",
        "core/test_connector_properties.py::test_reading_an_episode_shows_the_record_and_does_not_change_it",
    ),
    Entry(
        "statistics of MeanStdFilter are by module",
        "docs/connectors.md",
        "core/test_connector_state.py::test_every_observation_sent_is_counted_once",
    ),
)
CorrectedLoop = known.CorrectedLoop.options(fixes=("true_flags", "time_maps"))


def unexplained(case: Case, want: Run, got: Run) -> list[Finding]:
    """Differences that nothing explains."""
    found = list(differences(case, want, got))
    if not found or any(finding.kind not in MENDED for finding in found):
        return found
    return list(differences(case, play_rllib(case, CorrectedLoop), got))
