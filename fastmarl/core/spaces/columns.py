"""Names of recorded columns, the same strings as in RLlib."""

import math
from collections.abc import Collection
from enum import Enum
from typing import Any

import numpy as np

from fastmarl.core.objects.public import public


@public("fastmarl")
class Columns:
    """Keys of module batches, module outputs and episode columns."""

    OBS = "obs"
    NEXT_OBS = "new_obs"
    FINAL_OBS = "final_obs"  # the observation after the last step of a trajectory, as in Gymnasium
    INFOS = "infos"
    ACTIONS = "actions"
    ACTIONS_FOR_ENV = "actions_for_env"  # the actions sent to envs, if connectors change them
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTION_LOGP = "action_logp"
    ACTION_MASK = "action_mask"
    VF_PREDS = "vf_preds"
    STATE_IN = "state_in"
    STATE_OUT = "state_out"
    WEIGHTS_SEQ_NO = "weights_seq_no"
    SEQ_LENS = "seq_lens"
    LOSS_MASK = "loss_mask"
    EPS_ID = "eps_id"
    AGENT_ID = "agent_id"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    RETURNS_TO_GO = "returns_to_go"
    ACTIVE = "active"  # in aligned columns: True if the agent acted at the env step
    ENV_STATE = "env_state"
    FINAL_T = "final_t"  # in aligned columns: the step of the last observation of the agent
    NEXT_T = "next_t"  # in aligned columns: the step of the next observation of the agent
    CONTINUES = "continues"  # in aligned columns: False for terminated agents
    FINAL_ACTION_MASK = "final_action_mask"  # in aligned columns: the mask of the last observation
    IS_DONE = "is_done"  # in aligned columns: True if the episode ended with the chunk
    RESPAWNED = "respawned"  # in aligned columns: True for agents that start a new trajectory at the end of the chunk
    RESPAWN_OBS = "respawn_obs"  # in aligned columns: the observation with which they start
    RESPAWN_ACTION_MASK = "respawn_action_mask"  # in aligned columns: its mask
    FIRST_ENV_T = "first_env_t"  # in aligned columns: the env step of the first row of each chunk


@public("fastmarl")
class Recorded(Enum):
    """Columns that the runner records in addition to the module outputs.

    Each is normally stored under its plain name. If a module output already has that name, the output keeps it, and the
    runner's column is stored under the enum member.
    """

    ACTION_MASK = Columns.ACTION_MASK
    STATE_IN = Columns.STATE_IN
    WEIGHTS_SEQ_NO = Columns.WEIGHTS_SEQ_NO


OwnName = str | Recorded


def own_name(own: Recorded, outputs: Collection[Any]) -> OwnName:
    """Return the name under which the runner records a column, given the names of the module outputs."""
    return own if own.value in outputs else own.value


def recorded_name(own: Recorded, recorded: Collection[Any]) -> OwnName:
    """Return the name under which the runner recorded a column, given all recorded names."""
    return own if own in recorded else own.value


def blank_value(output: object, dtype: np.dtype) -> float:
    """Return the value for a missing output: NaN for floats, True for masks (all actions are legal), otherwise 0."""
    is_mask = output in (Columns.ACTION_MASK, (Recorded.ACTION_MASK,), Recorded.ACTION_MASK)
    return math.nan if dtype.kind == "f" else is_mask
