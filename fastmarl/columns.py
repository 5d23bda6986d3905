"""Names of the recorded columns; the strings are RLlib's, so batches look alike in both faces."""


class Columns:
    """Keys of module batches, module outputs and episode columns."""

    OBS = "obs"
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
