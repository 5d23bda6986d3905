"""CPU time of PPO's update, per agent step and epoch: a plain loop, and `fastmarl.learning`'s functions, step by step.

python benchmarks/bench_learning.py
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import gymnasium as gym
import numpy as np
import torch

import fastmarl
from fastmarl.learning import flat_parameters, minibatches, ppo_loss

N_ROWS = 24_576
Update = Callable[[], None]


def make_module() -> fastmarl.RLModule:
    return fastmarl.RLModuleSpec(
        observation_space=gym.spaces.Box(-1, 1, (18,), np.float32),
        action_space=gym.spaces.Discrete(5),
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
    ).build()


def make_batch() -> dict[str, torch.Tensor]:
    return {
        "obs": torch.rand(N_ROWS, 18),
        "actions": torch.randint(0, 5, (N_ROWS,)),
        "action_logp": torch.full((N_ROWS,), -1.6),
        "advantages": torch.randn(N_ROWS),
        "value_targets": torch.randn(N_ROWS),
    }


def plain_loss(module: fastmarl.RLModule, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """As most single-file examples have it."""
    outputs = module.forward_train({"obs": rows["obs"]})
    distribution = torch.distributions.Categorical(logits=outputs["action_dist_inputs"])
    ratio = (distribution.log_prob(rows["actions"]) - rows["action_logp"]).exp()
    surrogate = torch.min(ratio * rows["advantages"], ratio.clamp(0.8, 1.2) * rows["advantages"])
    error = (outputs["vf_preds"] - rows["value_targets"]) ** 2
    return -surrogate.mean() + 0.5 * error.mean() - 0.01 * distribution.entropy().mean()


def updates(size: int) -> dict[str, Update]:
    """An epoch by each way."""
    batch = make_batch()

    def way(loss: Callable, with_flat: bool, packed: bool) -> Update:
        module = make_module()
        parameters = [flat_parameters(module)] if with_flat else module.parameters()
        optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=with_flat)

        def epoch() -> None:
            if packed:
                pieces = minibatches(batch, size)
            else:
                pieces = ({n: c[rows] for n, c in batch.items()} for rows in torch.randperm(N_ROWS).split(size))
            for rows in pieces:
                optimizer.zero_grad()
                loss(module, rows).backward()
                optimizer.step()

        return epoch

    return {
        "plain": way(plain_loss, False, False),
        "ppo_loss": way(ppo_loss, False, False),
        "+ flat_parameters, fused Adam": way(ppo_loss, True, False),
        "+ minibatches": way(ppo_loss, True, True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for size in args.sizes:
        ways = updates(size)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.rounds + 1):
            for name, update in ways.items():
                begun = time.process_time()
                update()
                times[name].append((time.process_time() - begun) / N_ROWS * 1e6)
        print(f"minibatches of {size}, µs per agent step and epoch: median, least")
        for name, seconds in times.items():
            print(f"  {name:32} {median(seconds[1:]):6.2f} {min(seconds[1:]):6.2f}")


if __name__ == "__main__":
    main()
