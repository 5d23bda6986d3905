"""The class that has to equal RLlib's. This is the one place that names it."""

from fastmarl.rllib import RolloutWorker

SUBJECT: type = RolloutWorker
