"""CPU time of PPO's update per agent step and epoch: a plain loop, then more and more parts of `fastmarl.learning`.

python benchmarks/bench_learning.py
python benchmarks/bench_learning.py --hiddens 256 256 --rows 9600 --sizes 2400

The share of the peak is the rate of the multiplications and additions of both nets, forwards and backwards, divided by
the rate in a product of two 1,024 x 1,024 matrices.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from fastmarl.learning import PPOLearner, flat_parameters, minibatches, ppo_loss

N_OBS, EPOCHS = 18, 4
LAST = "PPOLearner"
Update = Callable[[], None]


def make_module(hiddens: list[int]) -> fastmarl.RLModule:
    return fastmarl.RLModuleSpec(
        observation_space=gym.spaces.Box(-1, 1, (N_OBS,), np.float32),
        action_space=gym.spaces.Discrete(5),
        model_config={"fcnet_hiddens": hiddens, "fcnet_activation": "tanh", "vf_share_layers": False},
    ).build()


def make_batch(n: int) -> dict[str, torch.Tensor]:
    return {
        "obs": torch.rand(n, N_OBS),
        "actions": torch.randint(0, 5, (n,)),
        "action_logp": torch.full((n,), -1.6),
        "advantages": torch.randn(n),
        "value_targets": torch.randn(n),
    }


def plain_loss(module: fastmarl.RLModule, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the PPO loss as most single-file examples compute it."""
    outputs = module.forward_train({"obs": rows["obs"]})
    distribution = torch.distributions.Categorical(logits=outputs["action_dist_inputs"])
    ratio = (distribution.log_prob(rows["actions"]) - rows["action_logp"]).exp()
    surrogate = torch.min(ratio * rows["advantages"], ratio.clamp(0.8, 1.2) * rows["advantages"])
    error = (outputs["vf_preds"] - rows["value_targets"]) ** 2
    return -surrogate.mean() + 0.5 * error.mean() - 0.01 * distribution.entropy().mean()


def taken(batch: dict[str, torch.Tensor], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gather rows of each column separately."""
    return {name: column[rows] for name, column in batch.items()}


def updates(hiddens: list[int], n: int, size: int) -> dict[str, Update]:
    """Return a function for each way to update."""
    batch = make_batch(n)

    def way(loss: Callable, with_flat: bool, packed: bool) -> Update:
        module = make_module(hiddens)
        parameters = [flat_parameters(module)] if with_flat else module.parameters()
        optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=with_flat)

        def update() -> None:
            if packed:
                pieces = minibatches(batch, size, EPOCHS)
            else:
                orders = (torch.randperm(n) for _ in range(EPOCHS))
                pieces = (taken(batch, rows) for order in orders for rows in order.split(size))
            for rows in pieces:
                optimizer.zero_grad()
                loss(module, rows).backward()
                optimizer.step()

        return update

    learner = PPOLearner(
        make_module(hiddens), lr=1e-4, epochs=EPOCHS, minibatch_size=size, max_grad_norm=None, num_threads=1
    )
    return {
        "plain": way(plain_loss, False, False),
        "ppo_loss": way(ppo_loss, False, False),
        "+ flat_parameters, fused Adam": way(ppo_loss, True, False),
        "+ minibatches": way(ppo_loss, True, True),
        LAST: lambda: learner.update(batch) and None,
    }


def operations(hiddens: list[int]) -> int:
    """Count multiplications and additions per row: one product forwards and two backwards, except for observations."""
    widths = [N_OBS, *hiddens]
    inner = sum(a * b for a, b in pairwise(widths[1:])) + widths[-1] * (5 + 1) / 2
    return int(2 * 2 * (2 * widths[0] * widths[1] + 3 * inner))


def peak() -> float:
    """Return the operations per second in a product of two matrices."""
    left, right, seconds = torch.rand(1024, 1024), torch.rand(1024, 1024), []
    for _ in range(10):
        begun = time.process_time()
        torch.mm(left, right)
        seconds.append(time.process_time() - begun)
    return 2 * 1024**3 / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--rows", type=int, default=24_576)
    parser.add_argument("--hiddens", type=int, nargs="+", default=[64, 64])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for size in args.sizes:
        ways, most = updates(args.hiddens, args.rows, size), peak()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.rounds + 1):
            for name, update in ways.items():
                begun = time.process_time()
                update()
                times[name].append((time.process_time() - begun) / args.rows / EPOCHS * 1e6)
        print(f"minibatches of {size}, µs per agent step and epoch: median, least")
        for name, seconds in times.items():
            share = operations(args.hiddens) / (min(seconds[1:]) * 1e-6) / most
            print(f"  {name:32} {median(seconds[1:]):6.2f} {min(seconds[1:]):6.2f}   {share:4.0%} of the peak")


if __name__ == "__main__":
    main()
