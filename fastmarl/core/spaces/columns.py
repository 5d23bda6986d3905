"""Names of the recorded columns; the strings are RLlib's, so batches are alike in both faces."""

import math
from collections.abc import Collection
from enum import Enum
from typing import Any

import numpy as np

from fastmarl.core.objects.public import public


@public("fastmarl")
class Columns:
    """Keys of module batches, module outputs, and episode columns."""

    OBS = "obs"
    NEXT_OBS = "new_obs"
    FINAL_OBS = "final_obs"  # the observation after a trajectory's last step (Gymnasium's name)
    INFOS = "infos"
    ACTIONS = "actions"
    ACTIONS_FOR_ENV = "actions_for_env"  # if connectors change what envs receive
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
    FINAL_T = "final_t"  # in aligned columns: the step of the agent's last observation
    NEXT_T = "next_t"  # in aligned columns: the step of the agent's next observation
    CONTINUES = "continues"  # in aligned columns: False for agents that have terminated
    FINAL_ACTION_MASK = "final_action_mask"  # in aligned columns: the mask of the agent's last observation
    FIRST_ENV_T = "first_env_t"  # in aligned columns: the env step of each chunk's first row


@public("fastmarl")
class Recorded(Enum):
    """Columns that the runner itself records among a module's outputs.

    Such a column normally has its plain name. If the module has an output of that name, the output keeps it, and the
    runner's column gets the member of this enum as its name.
    """

    ACTION_MASK = Columns.ACTION_MASK
    STATE_IN = Columns.STATE_IN
    WEIGHTS_SEQ_NO = Columns.WEIGHTS_SEQ_NO


OwnName = str | Recorded


def own_name(own: Recorded, outputs: Collection[Any]) -> OwnName:
    """Return the name under which the runner records its own column, next to outputs of these names."""
    return own if own.value in outputs else own.value


def recorded_name(own: Recorded, recorded: Collection[Any]) -> OwnName:
    """Return the name of the runner's own column among the names of everything recorded."""
    return own if own in recorded else own.value


def blank_value(output: object, dtype: np.dtype) -> float:
    """Return the value that stands for a missing output: NaN, 0, or True for masks, which rules nothing out."""
    is_mask = output in (Columns.ACTION_MASK, (Recorded.ACTION_MASK,), Recorded.ACTION_MASK)
    return math.nan if dtype.kind == "f" else is_mask
