"""IPPO of `fastmarl train epymarl`, given its options."""

import sys

import meter
import torch

import fastmarl
from examples.epymarl import ALGORITHM
from fastmarl.cli.train_options import parse_options
from fastmarl.learning import keep_freed_memory

torch.set_num_threads(1)
keep_freed_memory()  # as fastmarl train does
args = parse_options(ALGORITHM, ["--seed", "0", *sys.argv[2:]])
runner = fastmarl.MultiAgentEnvRunner(ALGORITHM.make_config(args))
learner = ALGORITHM.make_learner(runner, args, 10**6)
clock = meter.Meter(meter.updates())
while not clock.is_over:
    episodes = runner.sample()
    clock.sampled(args.num_envs * args.fragment)
    learner.learn(episodes)
    clock.learned()
clock.report()
