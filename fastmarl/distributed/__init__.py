"""Env runners in other processes: `BackgroundSampler` on this machine, `EnvRunnerGroup` on a Ray cluster."""

from fastmarl.distributed.background import BackgroundSampler as BackgroundSampler
from fastmarl.distributed.group import EnvRunnerGroup as EnvRunnerGroup
from fastmarl.distributed.parts import SamplePart as SamplePart
