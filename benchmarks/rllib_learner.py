"""PPO's whole iteration on MultiAgentCartPole: RLlib's runner and learner, ours instead of the first, ours for both.

    python benchmarks/rllib_learner.py --epochs 30

CPU time of `algorithm.train()`, the three in turn in one process on one core.
"""

import argparse
import logging
import random
import statistics
import time
import warnings

import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner as RLlibLearner
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibEnvRunner
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

import fastmarl.rllib

KINDS = {
    "RLlib": (RLlibEnvRunner, RLlibLearner),
    "fastmarl's runner": (fastmarl.rllib.MultiAgentEnvRunner, RLlibLearner),
    "its learner, too": (fastmarl.rllib.MultiAgentEnvRunner, fastmarl.rllib.PPOTorchLearner),
}


def make_algorithm(runner_class, learner_class, epochs):
    seed(1)
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": 2})
        .multi_agent(policies=["p0", "p1"], policy_mapping_fn=lambda agent_id, *args, **kwargs: f"p{agent_id}")
        .env_runners(env_runner_cls=runner_class, num_env_runners=0)
        .training(train_batch_size_per_learner=4000, minibatch_size=128, num_epochs=epochs, learner_class=learner_class)
        .debugging(seed=1)
    )
    return config.build_algo()


def seed(number):
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)
    algorithms = {name: make_algorithm(*kind, arguments.epochs) for name, kind in KINDS.items()}
    seconds = {name: [] for name in KINDS}
    for i in range(arguments.iterations + 1):
        for name, algorithm in algorithms.items():
            seed(i)
            began = time.process_time()
            algorithm.train()
            if i:  # the first compiles, and fills caches
                seconds[name].append(time.process_time() - began)
    theirs = statistics.median(seconds["RLlib"])
    for name, each in seconds.items():
        print(f"{name:18} {statistics.median(each):6.2f} s  {theirs / statistics.median(each):5.2f}x")


if __name__ == "__main__":
    main()
