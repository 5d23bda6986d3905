"""Sampling in other processes while the learner learns."""

from fastmarl.distributed.background.sampler import BackgroundSampler as BackgroundSampler
