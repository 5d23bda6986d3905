"""Env runners in the processes of a Ray cluster."""

from fastmarl.distributed.group import EnvRunnerGroup as EnvRunnerGroup
from fastmarl.distributed.parts import SamplePart as SamplePart
