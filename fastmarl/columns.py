"""Names of the recorded columns; the strings are RLlib's, so batches look alike in both faces."""

import math

import numpy as np


class Columns:
    """Keys of module batches, module outputs and episode columns."""

    OBS = "obs"
    NEXT_OBS = "new_obs"
    FINAL_OBS = "final_obs"  # the observation after a trajectory's last step (Gymnasium's name)
    INFOS = "infos"
    ACTIONS = "actions"
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
    ACTIVE = "active"  # in aligned columns: whether the agent acted at the env step
    ENV_STATE = "env_state"
    FINAL_T = "final_t"  # in aligned columns: the step of the agent's last observation
    FIRST_ENV_T = "first_env_t"  # in aligned columns: the env step of their first row


def blank_value(output: object, dtype: np.dtype) -> float:
    """What stands where an output was not given: NaN, 0, or for masks that nothing is ruled out."""
    return math.nan if dtype.kind == "f" else output == Columns.ACTION_MASK
