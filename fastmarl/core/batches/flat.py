"""Episodes as flat columns by module: what feedforward learners train on."""

from collections.abc import Collection, Iterable
from typing import Any

from fastmarl.core.batches.trajectories import RECORDED, Trajectories, by_module, names_of
from fastmarl.core.columns import Columns
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode

Batch = dict[str, Any]


def columns(
    episodes: Iterable[MultiAgentEpisode], *, outputs: Iterable[str] | None = None, next_obs: bool = False
) -> dict[str, Batch]:
    """Module id -> the steps of its agents, trajectory after trajectory, without lookbacks.

    A trajectory is an agent episode. Trajectories are in order of the episodes, and within each in order of the
    agents' appearance. There are n steps of s trajectories:

    - "obs", "actions" [n, ...], nested as they are; "rewards" float64 [n].
    - "terminateds", "truncateds": bool [n], at the last step of trajectories that ended so. Neither: it was cut.
    - each of `outputs` [n, ...]; and "action_mask" [n, choices], where masks were recorded apart from observations.
    - "seq_lens": int64 [s], steps of each trajectory.
    - "final_obs" [s, ...]: the observation after each trajectory's last step.
    - "eps_id", "agent_id": object [s].
    - "new_obs" [n, ...], with `next_obs`: the observation after each step.

    All arrays are copies, made once: they may be written to.

    Args:
        episodes: chunks as `sample()` returns them, of as many calls as you like.
        outputs: names of recorded outputs, NaN (0 for integers) where an agent has none; None: all that all of the
            module's agents have, but "state_in" and "state_out", and those with the name of another column.

    Raises:
        BatchError: an output was not recorded, or a module's agents have different spaces.
    """
    outputs = names_of(outputs)
    return {
        module_id: _columns(trajectories, outputs, next_obs) for module_id, trajectories in by_module(episodes).items()
    }


def _columns(trajectories: Trajectories, outputs: Collection[str] | None, next_obs: bool) -> Batch:
    steps = trajectories.steps_after_lookback()
    batch: Batch = trajectories.read_all([*RECORDED, *trajectories.wanted_outputs(outputs)], steps)
    batch |= trajectories.end_flags()
    batch[Columns.SEQ_LENS] = trajectories.length_S
    batch[Columns.FINAL_OBS] = trajectories.final_obs()
    batch |= trajectories.ids()
    if next_obs:
        batch[Columns.NEXT_OBS] = trajectories.obs_after(steps)
    return batch
