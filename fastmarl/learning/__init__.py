"""Tools for training loops in plain PyTorch: batches as tensors, minibatches, losses and learners."""

from fastmarl.learning.flat_parameters import flat_parameters as flat_parameters
from fastmarl.learning.freed_memory import keep_freed_memory as keep_freed_memory
from fastmarl.learning.metrics_writer import MetricsWriter as MetricsWriter
from fastmarl.learning.minibatches import minibatches as minibatches
from fastmarl.learning.ppo import ppo_loss as ppo_loss
from fastmarl.learning.ppo_learner import PPOLearner as PPOLearner
from fastmarl.learning.q_learner import QLearner as QLearner
from fastmarl.learning.q_mixer import QMixer as QMixer
from fastmarl.learning.team_replay import TeamReplay as TeamReplay
from fastmarl.learning.tensors import to_tensors as to_tensors
from fastmarl.learning.value_learner import ValueLearner as ValueLearner
from fastmarl.learning.value_norm import ValueNorm as ValueNorm
from fastmarl.learning.value_norm import normalized as normalized
from fastmarl.learning.values import bootstrap_values as bootstrap_values
from fastmarl.learning.values import make_value_fn as make_value_fn
