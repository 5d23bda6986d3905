"""Compare PPO iterations: RLlib's runner and learner, our runner, our runner and learner, and both in fast modes.

    python benchmarks/rllib_learner.py --epochs 30
    python benchmarks/rllib_learner.py --env simple_spread --policies one

The figures are CPU times of `algorithm.train()`, all in turn in one process on one core.
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
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
from ray.tune.registry import register_env

import fastmarl.rllib

KINDS = {
    "RLlib": (RLlibEnvRunner, RLlibLearner),
    "fastmarl's runner": (fastmarl.rllib.MultiAgentEnvRunner, RLlibLearner),
    "its learner, too": (fastmarl.rllib.MultiAgentEnvRunner, fastmarl.rllib.PPOTorchLearner),
    "both fast": (
        fastmarl.rllib.MultiAgentEnvRunner.options(sampler="fast"),
        fastmarl.rllib.PPOTorchLearner.options(update="fast"),
    ),
}
ENVS = {"cartpole": (MultiAgentCartPole, ["0", "1"]), "simple_spread": ("simple_spread", ["0", "1", "2"])}  # agents


def simple_spread(config):
    from mpe2 import simple_spread_v3

    return ParallelPettingZooEnv(simple_spread_v3.parallel_env(N=3))


def make_algorithm(runner_class, learner_class, *, env="cartpole", n_policies=2, epochs=6, number=1):
    """Return PPO with a policy for each agent, or with one for all.

    Args:
        runner_class, learner_class: Classes of the runner and the learner.
        env: Key of ENVS.
        n_policies: One per agent, or 1.
        epochs: Epochs of an update.
        number: Seed of everything.
    """
    seed(number)
    env_class, agents = ENVS[env]
    register_env("simple_spread", simple_spread)
    policies = [f"p{agent}" for agent in agents[:n_policies]]

    def mapping(agent_id, *args, **kwargs):
        return f"p{str(agent_id)[-1]}" if n_policies > 1 else "p0"

    config = (
        PPOConfig()
        .environment(env_class, env_config={"num_agents": len(agents)})
        .multi_agent(policies=policies, policy_mapping_fn=mapping)
        .env_runners(env_runner_cls=runner_class, num_env_runners=0)
        .training(train_batch_size_per_learner=4000, minibatch_size=128, num_epochs=epochs, learner_class=learner_class)
        .debugging(seed=number)
    )
    return config.build_algo()


def seed(number):
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


def start_ray():
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", choices=ENVS, default="cartpole")
    parser.add_argument("--policies", choices=("one", "each"), default="each", help="for all agents, or each of them")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    start_ray()
    options = {
        "env": arguments.env,
        "n_policies": 1 if arguments.policies == "one" else len(ENVS[arguments.env][1]),
        "epochs": arguments.epochs,
    }
    algorithms = {name: make_algorithm(*kind, **options) for name, kind in KINDS.items()}
    seconds = {name: [] for name in KINDS}
    for i in range(arguments.iterations + 1):
        for name, algorithm in algorithms.items():
            seed(i)
            began = time.process_time()
            algorithm.train()
            if i:  # the first one compiles and fills caches
                seconds[name].append(time.process_time() - began)
    theirs = statistics.median(seconds["RLlib"])
    for name, each in seconds.items():
        print(f"{name:18} {statistics.median(each):6.2f} s  {theirs / statistics.median(each):5.2f}x")


if __name__ == "__main__":
    main()
