"""The task, the hyperparameters and the end of a run, shared by all learners in this folder.

PyTorch and mpe2 are imported inside functions, since the environment of JAX's learner has neither.
"""

import argparse
import json
import time
from collections import deque

AGENTS, OBSERVATION_SIZE, ACTIONS, MAX_CYCLES = 3, 18, 5, 25
HIDDENS = (64, 64)  # of the policy and of the value function, which are separate networks with tanh
NUM_ENVS, FRAGMENT = 32, 50  # 1,600 env steps per iteration
EPOCHS, MINIBATCH = 8, 1200  # minibatch size in agent steps
GAMMA, LAMBDA, CLIP, VF_COEFF, ENTROPY_COEFF = 0.95, 0.95, 0.2, 0.5, 0.01
LEARNING_RATE, ADAM_EPS, MAX_GRAD_NORM = 2e-3, 1e-5, 0.5
REWARD_SCALE = 0.1
WINDOW = 200  # episodes in the mean return


def make_env():
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=AGENTS, max_cycles=MAX_CYCLES)


def initialize(parameters):
    """Initialise weights [n_out, n_in] and biases of a policy and a value function like CleanRL's PPO."""
    import torch

    gains = {ACTIONS: 0.01, 1: 1.0}  # of the output layers
    for parameter in parameters:
        if parameter.dim() == 1:
            torch.nn.init.zeros_(parameter)
        else:
            torch.nn.init.orthogonal_(parameter, gains.get(len(parameter), 2**0.5))


class Progress:
    """Counts the steps, episodes and seconds of a run; the learner checks `is_over` after each iteration.

    The clock starts with this object: environments and networks are ready, nothing has been sampled. Its CPU time
    excludes `compilation`, the CPU seconds of the learner's compilation before that.
    """

    def __init__(self, arguments, compilation=0.0):
        self._compilation = compilation
        self._target, self._max_steps = arguments.target, arguments.max_steps
        self._returns = deque(maxlen=WINDOW)
        self._began = time.perf_counter(), time.process_time()
        self._last_said = 0.0
        self.env_steps = 0

    def add(self, env_steps, returns):
        """Add an iteration.

        Args:
            env_steps: Its env steps.
            returns: Returns of the episodes that ended in it, as sums over agents of the environment's own rewards.
        """
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
    """Return a parser of the options that all learners have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=float, default=-45.0)
    parser.add_argument("--max-steps", type=int, default=3_000_000, help="env steps after which the run is given up")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def arguments():
    """Parse the command line, seed torch and limit it to one thread."""
    import torch

    of_learner = parser()
    of_learner.add_argument("--env", default="mpe2.simple_spread_v3")
    of_learner.add_argument("--sampler", default="")
    parsed = of_learner.parse_args()
    torch.manual_seed(parsed.seed)
    torch.set_num_threads(1)
    return parsed
