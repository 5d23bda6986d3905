"""Training batches built from episodes: flat rows, sequences, or columns aligned by env step."""

from fastmarl.core.batches.estimates import (
    add_aligned_gae,
    add_aligned_n_step_returns,
    add_gae,
    add_n_step_returns,
    add_returns,
    add_vtrace,
)
from fastmarl.core.batches.flat import columns, map_columns
from fastmarl.core.batches.joint import aligned
from fastmarl.core.batches.recurrent import sequences
from fastmarl.core.batches.team import TeamRewards, rewards_by_arrival, with_final_obs

__all__ = [
    "TeamRewards",
    "add_aligned_gae",
    "add_aligned_n_step_returns",
    "add_gae",
    "add_n_step_returns",
    "add_returns",
    "add_vtrace",
    "aligned",
    "columns",
    "map_columns",
    "rewards_by_arrival",
    "sequences",
    "with_final_obs",
]
