"""View requirements of a policy: the columns and steps in its batches."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from ray.rllib.evaluation.collectors.agent_collector import AgentCollector
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.policy.view_requirement import ViewRequirement
from ray.rllib.utils.spaces.space_utils import flatten_to_single_ndarray, get_dummy_batch_for_space

OBS, INFOS, ACTIONS, REWARDS = SampleBatch.OBS, SampleBatch.INFOS, SampleBatch.ACTIONS, SampleBatch.REWARDS
STATE_OUT = "state_out_"
AGENT_ID = "agent_id"
WITH_NEXT = (OBS, INFOS)
"""Columns that also have a value at the end of a step."""
CONSTANT = {
    SampleBatch.EPS_ID: "episode_id",
    SampleBatch.AGENT_INDEX: "agent_index",
    SampleBatch.ENV_ID: "env_id",
    AGENT_ID: "agent_id",
}
LISTS = {
    OBS: "obs",
    INFOS: "infos",
    SampleBatch.T: "times",
    REWARDS: "rewards",
    SampleBatch.TERMINATEDS: "terminateds",
    SampleBatch.TRUNCATEDS: "truncateds",
    SampleBatch.UNROLL_ID: "unrolls",
}
FIXED = (*CONSTANT, SampleBatch.UNROLL_ID, INFOS)
"""Columns that can be requested only for the current step."""
FLAGS = (SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS)
CONSTANT_TO_ACT = {
    SampleBatch.EPS_ID: "env_id",  # RLlib connectors do not know the episode id
    SampleBatch.UNROLL_ID: "seen_unroll_id",
    SampleBatch.AGENT_INDEX: "agent_index",
    SampleBatch.ENV_ID: "env_id",
}
"""Constant input columns of policies."""
TO_ACT = (OBS, ACTIONS, REWARDS, SampleBatch.T, *FLAGS, *CONSTANT_TO_ACT)
"""Input columns that policies may request, in addition to states."""


class View(NamedTuple):
    """A column of a batch.

    Attributes:
        name: Name of the column.
        source: Name of the recorded data it comes from.
        shifts: Steps relative to the current one, [k].
        shift: The shift if there is only one, and one row per step; otherwise None.
        repeat: Number of steps from one row to the next.
        initial: Value of the source before the first step, or None if the RLlib rules for the source apply.
    """

    name: str
    source: str
    shifts: np.ndarray
    shift: int | None
    repeat: int
    initial: Any


class Views:
    """View requirements of a policy.

    Args:
        policy: The policy.

    Attributes:
        columns: Columns of training batches, in order; columns not recorded are missing from batches.
        inputs: Input columns of the policy, in order.
        before: Number of earlier steps needed by the views, as counted by RLlib.
        zeros: Column -> value before the first step, for actions and rewards that RLlib initializes with zeros.
        sees_observations_alone: True if the current observations are the only policy input.
        states: Names of the states required in the policy outputs.
        problem: Reason why the RLlib collector must build the batches, or None.
    """

    def __init__(self, policy: Any):
        self.look_at(policy)

    def look_at(self, policy: Any) -> None:
        """Read the view requirements of the policy, which may have changed."""
        requirements: Mapping[str, ViewRequirement] = policy.view_requirements
        self.columns: list[View] = []
        self.inputs: list[View] = []
        self.zeros: dict[str, Any] = {}
        self.states: list[str] = []
        self.before, self.sees_observations_alone = 1, False
        self.problem = _problem(policy)
        if self.problem is not None:
            return
        flatten = not policy.config.get("_disable_action_flattening", False)
        self.before = AgentCollector(requirements).shift_before
        for column, asked in ((REWARDS, SampleBatch.PREV_REWARDS), (ACTIONS, SampleBatch.PREV_ACTIONS)):
            if asked in requirements:
                self.zeros[column] = _zeros(column, requirements[column].space, flatten)
        for name, one in requirements.items():
            source = one.data_col or name
            space = requirements[source].space if source in requirements else one.space
            initial = _zeros(source, space, flatten) if source in (ACTIONS, REWARDS, *FLAGS) else None
            shift = int(one.shift_arr[0]) if len(one.shift_arr) == 1 == one.batch_repeat_value else None
            view = View(name, source, one.shift_arr, shift, one.batch_repeat_value, initial)
            self.columns.append(view)
            if one.used_for_compute_actions:
                self.inputs.append(view)
                if source == ACTIONS and not isinstance(initial, np.ndarray):
                    self.problem = f"it requests {name!r}, which is nested, as an input"
            if source.startswith(STATE_OUT) and source not in self.states:
                self.states.append(source)
        self.sees_observations_alone = [(one.name, one.source, one.shift) for one in self.inputs] == [(OBS, OBS, 0)]


def _zeros(column: str, space: Any, flatten: bool) -> Any:
    """Return the value that RLlib uses for a column before the first step."""
    zeros = get_dummy_batch_for_space(space, batch_size=0) if isinstance(space, gym.Space) else space
    return flatten_to_single_ndarray(zeros) if column == ACTIONS and flatten else zeros


def _problem(policy: Any) -> str | None:
    requirements = policy.view_requirements
    if OBS not in requirements:
        return "it does not request observations"
    for name, one in requirements.items():
        source = one.data_col or name
        if source in FIXED and ([*one.shift_arr] not in ([0], [int(source == INFOS)]) or one.batch_repeat_value != 1):
            return f"it requests {name!r} of other steps"
        if not one.used_for_compute_actions:
            continue
        if (one.shift_arr > 0).any():
            return f"it requests {name!r} of later steps as an input"
        if source.startswith(STATE_OUT):
            if not policy.is_recurrent():
                return f"it requests {name!r}, but is not recurrent"
        elif source not in TO_ACT:
            return f"it requests {name!r} as an input"
    for asked, needed in ((SampleBatch.PREV_REWARDS, REWARDS), (SampleBatch.PREV_ACTIONS, ACTIONS)):
        if asked in requirements and needed not in requirements:
            return f"it requests {asked!r}, but not {needed!r}"
    return None
