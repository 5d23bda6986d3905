"""Converts episodes to flat columns per module, for feedforward learners."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from fastmarl.core.batches.trajectories import RECORDED, Trajectories, by_module, names_of
from fastmarl.core.episodes.multi_agent import MultiAgentEpisode
from fastmarl.core.spaces.columns import Columns
from fastmarl.core.spaces.structs import map_struct

Batch = dict[str, Any]


def columns(
    episodes: Iterable[MultiAgentEpisode], *, outputs: Iterable[str] | None = None, next_obs: bool = False
) -> dict[str, Batch]:
    """Convert episodes to flat columns per module, one trajectory after another, without lookbacks.

    A trajectory is an agent episode. Trajectories are ordered by episode and, within each episode, by first appearance
    of the agent. For n steps of s trajectories, the batch of a module has these columns:

    - "obs", "actions" [n, ...], nested like their spaces; "rewards" float64 [n].
    - "terminateds", "truncateds": bool [n], True at the last step of trajectories that ended this way. A trajectory
      with neither was cut.
    - each of `outputs` [n, ...], and "action_mask" [n, choices] if masks were recorded separately from observations.
    - "seq_lens": int64 [s], number of steps of each trajectory.
    - "final_obs" [s, ...]: the observation after the last step of each trajectory.
    - "eps_id", "agent_id": object [s].
    - "new_obs" [n, ...], with `next_obs`: the observation after each step.

    All arrays are writable copies.

    Args:
        episodes: Chunks from one or more `sample()` calls.
        outputs: Names of recorded outputs, filled with NaN (0 for integers) for agents without them. None means all
            outputs common to all agents of the module, except "state_in", "state_out", and names of other columns.
        next_obs: If True, add "new_obs".

    Returns:
        Module id -> name -> column.

    Raises:
        BatchError: If an output was not recorded, or the agents of a module have different spaces.
    """
    outputs = names_of(outputs)
    return {
        module_id: _columns(trajectories, outputs, next_obs) for module_id, trajectories in by_module(episodes).items()
    }


def map_columns(function: Callable[[Any], Any], batch: Mapping[str, Any]) -> Batch:
    """Apply a function to every column of a batch, or to every array or tensor of nested columns.

    Args:
        function: Function of an array or a tensor, such as `lambda column: column[rows]`.
        batch: Name -> array or tensor, or nested dicts and tuples of these.
    """
    return {name: map_struct(function, column) for name, column in batch.items()}


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
