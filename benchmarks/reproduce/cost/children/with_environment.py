"""The Python env alone, with random actions."""

import sys

import gymnasium as gym
import lbforaging  # noqa: F401 - registers its envs
import meter

env = gym.make(sys.argv[2], disable_env_checker=True)
env.action_space.seed(0)
actions = [env.action_space.sample() for _ in range(1000)]
env.reset(seed=0)
clock = meter.Meter(meter.updates())
while not clock.is_over:
    for action in actions:
        _, _, is_over, is_cut, _ = env.step(action)
        if is_over or is_cut:
            env.reset()
    clock.sampled(len(actions))
    clock.learned()
clock.report()
