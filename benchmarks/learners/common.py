"""What all learners of this folder share: the task, the hyperparameters, and when a run is over.

PyTorch and mpe2 are imported where they are used: the environment of JAX's learner has neither.
"""

import argparse
import json
import time
from collections import deque

AGENTS, OBSERVATION_SIZE, ACTIONS, MAX_CYCLES = 3, 18, 5, 25
HIDDENS = (64, 64)  # of the policy and of the value function, each by itself, with tanh
NUM_ENVS, FRAGMENT = 32, 50  # 1,600 env steps an iteration
EPOCHS, MINIBATCH = 8, 1200  # agent steps
GAMMA, LAMBDA, CLIP, VF_COEFF, ENTROPY_COEFF = 0.95, 0.95, 0.2, 0.5, 0.01
LEARNING_RATE, ADAM_EPS, MAX_GRAD_NORM = 2e-3, 1e-5, 0.5
REWARD_SCALE = 0.1
WINDOW = 200  # episodes that the mean return is of


def make_env():
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=AGENTS, max_cycles=MAX_CYCLES)


def initialize(parameters):
    """Weights [n_out, n_in] and biases of a policy and a value function, as CleanRL's PPO begins."""
    import torch

    gains = {ACTIONS: 0.01, 1: 1.0}  # of the last layers
    for parameter in parameters:
        if parameter.dim() == 1:
            torch.nn.init.zeros_(parameter)
        else:
            torch.nn.init.orthogonal_(parameter, gains.get(len(parameter), 2**0.5))


class Progress:
    """Counts a run's steps, episodes and seconds; the learner asks `is_over` after each iteration.

    The clock begins with this object: environments and networks are ready, nothing has been sampled. Its CPU time is
    without `compilation`, the CPU seconds that a learner took for that before.
    """

    def __init__(self, arguments, compilation=0.0):
        self._compilation = compilation
        self._target, self._max_steps = arguments.target, arguments.max_steps
        self._returns = deque(maxlen=WINDOW)
        self._began = time.perf_counter(), time.process_time()
        self._last_said = 0.0
        self.env_steps = 0

    def add(self, env_steps, returns):
        """An iteration: its env steps, and the returns (sums over agents, as the environment paid) of the episodes that
        ended in it."""
        self.env_steps += env_steps
        self._returns.extend(returns)

    @property
    def is_over(self):
        mean = sum(self._returns) / len(self._returns) if len(self._returns) == WINDOW else float("-inf")
        reached = mean >= self._target
        over = reached or self.env_steps >= self._max_steps
        seconds, cpu_seconds = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        if over or seconds > self._last_said + 10:
            self._last_said = seconds
            print(json.dumps({"env_steps": self.env_steps, "seconds": round(seconds, 1),
                              "cpu_seconds": round(cpu_seconds, 1),
                              "compilation": round(self._compilation, 1), "mean_return": round(mean, 2),
                              "reached": reached, "over": over}), flush=True)  # fmt: skip
        return over


def parser():
    """Parses the options that all learners have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=float, default=-45.0)
    parser.add_argument("--max-steps", type=int, default=3_000_000, help="env steps after which the run is given up")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def arguments():
    """The command's, after which torch is seeded and has one thread."""
    import torch

    of_learner = parser()
    of_learner.add_argument("--env", default="mpe2.simple_spread_v3")
    of_learner.add_argument("--sampler", default="")
    parsed = of_learner.parse_args()
    torch.manual_seed(parsed.seed)
    torch.set_num_threads(1)
    return parsed
