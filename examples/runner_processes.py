"""PPO with runners in separate processes, each with envs and a copy of the policy.

python examples/runner_processes.py --iterations 100 --processes 2
"""

import argparse
from dataclasses import replace
from time import perf_counter

import torch
import torch.multiprocessing
from train_shared_policy import learn, make_batch

import fastmarl

CONFIG = fastmarl.EnvRunnerConfig(
    env="fastmarl.simple_spread",
    num_envs_per_env_runner=32,
    rollout_fragment_length=100,
    model_config={"fcnet_hiddens": [64, 64]},
    seed=0,
)


def work(pipe, worker_index):
    """Sample whenever weights arrive, until None arrives. Unlike pickled episodes, tensors use shared memory."""
    torch.set_num_threads(1)
    runner = fastmarl.MultiAgentEnvRunner(replace(CONFIG, worker_index=worker_index))  # its seeds depend on it
    for weights in iter(pipe.recv, None):
        runner.set_weights(weights)
        pipe.send(make_batch(runner.sample(), runner.module["default_policy"]))
    runner.stop()


def train(pipes, iterations):
    learner = fastmarl.MultiAgentEnvRunner(replace(CONFIG, num_envs_per_env_runner=1))
    module = learner.module["default_policy"]
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for iteration in range(iterations):
        begun = perf_counter()
        for pipe in pipes:
            pipe.send(learner.get_weights())
        parts = [pipe.recv() for pipe in pipes]
        rate = sum(len(part["obs"]) for part in parts) / (perf_counter() - begun)
        batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        learn(module, optimizer, batch)
        print(f"iteration {iteration:3}  {rate:9,.0f} agent steps/s")
    learner.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    context = torch.multiprocessing.get_context("spawn")
    pipes = []
    for worker_index in range(1, args.processes + 1):
        pipe, of_worker = context.Pipe()
        context.Process(target=work, args=(of_worker, worker_index), daemon=True).start()
        pipes.append(pipe)
    train(pipes, args.iterations)
    for pipe in pipes:
        pipe.send(None)


if __name__ == "__main__":
    main()
