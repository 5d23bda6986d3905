"""Training runs that survive crashes and interrupts: the loop with checkpoints, and the run directory."""

from fastmarl.training.algorithm import Algorithm as Algorithm
from fastmarl.training.algorithm import agents_of as agents_of
from fastmarl.training.algorithm import linear_schedule as linear_schedule
from fastmarl.training.algorithm import load_states as load_states
from fastmarl.training.algorithm import states_of as states_of
from fastmarl.training.runner_options import runner_options as runner_options
