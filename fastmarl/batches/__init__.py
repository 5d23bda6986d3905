"""From episodes to the columns that learners train on: flat, in sequences, or aligned by env step."""

from fastmarl.batches.estimates import add_aligned_gae as add_aligned_gae
from fastmarl.batches.estimates import add_gae as add_gae
from fastmarl.batches.estimates import add_n_step_returns as add_n_step_returns
from fastmarl.batches.estimates import add_returns as add_returns
from fastmarl.batches.estimates import add_vtrace as add_vtrace
from fastmarl.batches.flat import columns as columns
from fastmarl.batches.joint import aligned as aligned
from fastmarl.batches.recurrent import sequences as sequences
