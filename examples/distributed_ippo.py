"""IPPO on simple_spread with runners in Ray actors, which also compute columns and advantages.

python examples/distributed_ippo.py --runners 2 --steps 4000000
python examples/distributed_ippo.py --runners 40 --steps 40000000 --address auto    (in a running cluster)

Each batch of any runner leads to one update. The runner weights are a few updates old, which the clipping of PPO
tolerates.
"""

import argparse
import csv
import math
import time
from pathlib import Path

import ray
import torch

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.distributed import EnvRunnerGroup
from fastmarl.learning import PPOLearner, keep_freed_memory, make_value_fn

GAMMA, LAMBDA, MINIBATCHES, EPOCHS, MAX_GRAD_NORM = 0.95, 0.95, 4, 4, 0.5
FRAGMENT, LEARNING_RATE = 25, 2e-3
POLICY = "default_policy"
NAMES = ["obs", "actions", "action_logp", "advantages", "value_targets"]


def make_batch(episodes, module):
    """Make a batch in the actor, which sends only the arrays returned here."""
    batch = columns(episodes, outputs=["action_logp", "vf_preds"])[POLICY]
    add_gae(batch, gamma=GAMMA, lambda_=LAMBDA, value_fn=make_value_fn(module[POLICY]))
    return {name: batch[name] for name in NAMES}


def train(group, steps, file):
    ppo = PPOLearner(
        group.module[POLICY], lr=LEARNING_RATE, epochs=EPOCHS, num_minibatches=MINIBATCHES, normalize_advantages=True,
        max_grad_norm=MAX_GRAD_NORM,
    )  # fmt: skip
    curve = csv.writer(file)
    curve.writerow(["env_steps", "seconds", "seconds_waited", "episode_return_mean", "entropy", "kl"])
    begun, done, waited, shown = time.perf_counter(), 0, 0.0, 0
    for part in group.sample_ready():
        stats = ppo.update(part.batch)
        done += part.num_env_steps
        ppo.optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(0.02, 1 - done / steps)
        group.set_weights()
        if done >= shown + steps / 100 or done >= steps:
            metrics, shown = group.get_metrics(), done
            waited += metrics["seconds_waited"]
            mean = metrics.get("episode_return_mean", math.nan)
            seconds = time.perf_counter() - begun
            curve.writerow([done, round(seconds, 2), round(waited, 2), mean, stats["entropy"], stats["kl"]])
            print(f"{done:>10} env steps  {seconds:6.1f} s  waited {waited:6.1f} s  mean return {mean:8.2f}")
        if done >= steps:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runners", type=int, default=2, help="number of sampling processes; 0: sample in this one")
    parser.add_argument("--num-envs", type=int, default=128, help="copies of the environment in each")
    parser.add_argument("--steps", type=int, default=4_000_000, help="env steps")
    parser.add_argument("--episodes", type=int, default=1000, help="episodes of the evaluation")
    parser.add_argument(
        "--address", help="address of a Ray cluster, such as auto; without it, Ray is started for this run"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/distributed_ippo"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    keep_freed_memory()
    args.folder.mkdir(parents=True, exist_ok=True)
    config = fastmarl.EnvRunnerConfig(
        env="fastmarl.simple_spread",
        num_envs_per_env_runner=args.num_envs,
        rollout_fragment_length=FRAGMENT,
        reward_scale=0.1,  # scales value targets to the order of 1
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        seed=args.seed,
    )
    if args.runners:
        here = {} if args.address else {"num_cpus": args.runners, "include_dashboard": False}
        ray.init(address=args.address or "local", **here)
    with EnvRunnerGroup(config, num_env_runners=args.runners, make_batch=make_batch) as group:
        with (args.folder / "curve.csv").open("w", newline="", buffering=1) as file:
            train(group, args.steps, file)
        found = group.evaluate(args.episodes, seeds=range(args.episodes))
        mean, error = found.mean / config.reward_scale, found.standard_error / config.reward_scale
        print(f"greedy play: mean return {mean:.2f} ± {error:.2f} over {args.episodes} episodes")


if __name__ == "__main__":
    main()
