"""From episodes to the columns that learners train on: flat, in sequences, or aligned by env step."""

from fastmarl.core.batches.estimates import add_aligned_gae as add_aligned_gae
from fastmarl.core.batches.estimates import add_gae as add_gae
from fastmarl.core.batches.estimates import add_n_step_returns as add_n_step_returns
from fastmarl.core.batches.estimates import add_returns as add_returns
from fastmarl.core.batches.estimates import add_vtrace as add_vtrace
from fastmarl.core.batches.flat import columns as columns
from fastmarl.core.batches.joint import aligned as aligned
from fastmarl.core.batches.recurrent import sequences as sequences
