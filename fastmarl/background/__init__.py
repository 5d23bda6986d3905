"""Sampling in other processes while the learner learns."""

from fastmarl.background.sampler import BackgroundSampler as BackgroundSampler
