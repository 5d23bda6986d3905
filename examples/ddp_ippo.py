"""IPPO on simple_spread with a runner and a learner in every torch.distributed process; only gradients are exchanged.

torchrun --standalone --nproc-per-node 2 examples/ddp_ippo.py --steps 4000000
python examples/ddp_ippo.py --runners 2 --steps 4000000    (in one process, equal up to rounding)

Each process samples and makes minibatches of its batch. Gradients are summed over all processes in each step, so that
all of them take the same step and keep equal weights. For several machines, start torchrun on each.
"""

import argparse
import csv
import os
import time
from pathlib import Path

import torch
from torch import distributed

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.learning import flat_parameters, keep_freed_memory, make_value_fn, minibatches, ppo_loss, to_tensors

GAMMA, LAMBDA, MINIBATCHES, EPOCHS, MAX_GRAD_NORM = 0.95, 0.95, 4, 4, 0.5
FRAGMENT, LEARNING_RATE = 25, 2e-3
POLICY = "default_policy"
NAMES = ["obs", "actions", "action_logp", "advantages", "value_targets"]
RANK, WORLD_SIZE = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))  # torchrun sets these


def summed(*numbers):
    """Return the numbers, each summed over all processes."""
    total = torch.tensor(numbers, dtype=torch.float64)
    if WORLD_SIZE > 1:
        distributed.all_reduce(total)
    return total.tolist()


class Learner:
    """Trains a module in place on the samples of all processes.

    Args:
        module: Module with equal weights in all processes.
        indices: Indices of the runners in this process among all runners.
        args: Options of the run.
        num_updates: Number of updates of the run.
    """

    def __init__(self, module, indices, args, num_updates):
        self.module = module
        self.parameters = flat_parameters(module)
        self.optimizer = torch.optim.Adam([self.parameters], lr=LEARNING_RATE, eps=1e-5, fused=True)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.02, num_updates)
        self.orders = [torch.Generator().manual_seed(1000 * args.seed + index) for index in indices]

    def batch_of(self, episodes):
        batch = columns(episodes, outputs=["action_logp", "vf_preds"])[POLICY]
        add_gae(batch, gamma=GAMMA, lambda_=LAMBDA, value_fn=make_value_fn(self.module))
        return to_tensors(batch, NAMES)

    def learn(self, batches):
        """Update the module on `batches`, one batch for each runner of this process."""
        self._normalise([batch["advantages"] for batch in batches])
        orders = [
            minibatches(batch, -(-len(batch["actions"]) // MINIBATCHES), EPOCHS, order)
            for batch, order in zip(batches, self.orders, strict=True)
        ]
        for parts in zip(*orders, strict=True):
            self.optimizer.zero_grad()
            for rows in parts:  # a sum over rows, as the number of rows may differ between processes
                (
                    ppo_loss(self.module, rows, clip=0.2, vf_coeff=0.5, entropy_coeff=0.01) * len(rows["actions"])
                ).backward()
            self._share_gradients(sum(len(rows["actions"]) for rows in parts))
            torch.nn.utils.clip_grad_norm_([self.parameters], MAX_GRAD_NORM)
            self.optimizer.step()
        self.schedule.step()

    def _share_gradients(self, num_rows):
        """Set the gradient to the mean over the rows of all processes."""
        sums = torch.cat([self.parameters.gradient, torch.tensor([float(num_rows)])])
        if WORLD_SIZE > 1:
            distributed.all_reduce(sums)
        self.parameters.grad = sums[:-1] / sums[-1]

    def _normalise(self, advantages):
        """Normalise by the mean and standard deviation over all processes."""
        local = torch.cat(advantages).double()
        n, total = summed(len(local), local.sum())
        (squares,) = summed((local - total / n).square().sum())
        for each in advantages:
            each.sub_(total / n).div_(max((squares / n) ** 0.5, 1e-6))


def make_runner(args, index):
    config = fastmarl.EnvRunnerConfig(
        env="fastmarl.simple_spread",
        num_envs_per_env_runner=args.num_envs,
        rollout_fragment_length=FRAGMENT,
        reward_scale=0.1,  # scales value targets to the order of 1
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        seed=args.seed,  # the weights depend only on the seed
        worker_index=index + 1,  # all other random numbers differ between runners
    )
    return fastmarl.MultiAgentEnvRunner(config)


def train(args, runners, learner, num_updates):
    steps_of_update = args.runners * WORLD_SIZE * args.num_envs * FRAGMENT
    begun, returns, curve = time.perf_counter(), [], []
    for update in range(1, num_updates + 1):
        sampled = [runner.sample() for runner in runners]
        learner.learn([learner.batch_of(episodes) for episodes in sampled])
        for runner in runners[1:]:
            runner.set_weights({POLICY: learner.module.get_state()})
        returns += [each.get_return() for episodes in sampled for each in episodes if each.is_done]
        if update % max(1, num_updates // 100) == 0 or update == num_updates:
            total, n = summed(sum(returns), len(returns))
            row = [update * steps_of_update, time.perf_counter() - begun, total / max(1, n) / 0.1]
            returns = []
            curve.append(row)
            if RANK == 0:
                print("{:>10} env steps  {:6.1f} s  mean return {:8.2f}".format(*row), flush=True)
    return curve


def run(args):
    indices = range(RANK * args.runners, (RANK + 1) * args.runners)
    runners = [make_runner(args, index) for index in indices]
    num_updates = -(-args.steps // (args.runners * WORLD_SIZE * args.num_envs * FRAGMENT))
    learner = Learner(runners[0].module[POLICY], indices, args, num_updates)
    curve = train(args, runners, learner, num_updates)
    if RANK == 0:
        args.folder.mkdir(parents=True, exist_ok=True)
        with (args.folder / "curve.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["env_steps", "seconds", "episode_return_mean"], *curve])
        runners[0].save_to_path(args.folder / "checkpoint")
        found = fastmarl.evaluate(runners[0], episodes=args.episodes, seeds=range(args.episodes))
        mean, error = found.mean / 0.1, found.standard_error / 0.1
        print(f"greedy play: mean return {mean:.2f} ± {error:.2f} over {args.episodes} episodes")
    for runner in runners:
        runner.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runners", type=int, default=1, help="runners per process")
    parser.add_argument("--num-envs", type=int, default=128, help="copies of the environment in each runner")
    parser.add_argument("--steps", type=int, default=4_000_000, help="env steps of all processes together")
    parser.add_argument("--episodes", type=int, default=1000, help="episodes of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/ddp_ippo"))
    args = parser.parse_args()
    torch.set_num_threads(1)  # the networks are small
    keep_freed_memory()
    if WORLD_SIZE > 1:
        distributed.init_process_group("gloo")
    try:
        run(args)
    finally:
        if WORLD_SIZE > 1:
            distributed.destroy_process_group()


if __name__ == "__main__":
    main()
