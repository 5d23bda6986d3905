"""Independent PPO with a shared policy (IPPO) on simple_spread: 3 agents spread over 3 landmarks.

python examples/ippo.py --steps 12000000 --folder runs/ippo    (or fastmarl train ippo, with a picture of the curve)
python examples/ippo.py --env fastmarl.lbforaging --env-config '{"name": "Foraging-8x8-2p-2f-coop-v3"}' --gamma 0.9

Random play returns about -79 an episode. 12 million env steps, 6 minutes of a core, bring greedy play to -23
(docs/benchmarks.md has figures). The folder gets the learning curve and a checkpoint, from which the policy that is
evaluated at the end is read again.
"""

import argparse
import csv
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import torch

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.errors import BatchError
from fastmarl.learning import PPOLearner, ValueNorm, keep_freed_memory, to_tensors, value_fn_of

LAMBDA, MINIBATCHES, MAX_GRAD_NORM = 0.95, 4, 0.5
FRAGMENT, LEARNING_RATE = 25, 2e-3
POLICY = "default_policy"


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        env=args.env,
        env_config=args.env_config,
        num_envs_per_env_runner=args.num_envs,
        rollout_fragment_length=FRAGMENT,
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        seed=args.seed,
    )


class Learner:
    """Trains a module in place, so that its runner acts with the newest weights."""

    def __init__(self, module, args, num_updates):
        self.module, self.args, self.value_norm = module, args, ValueNorm()
        self.ppo = PPOLearner(
            module, lr=LEARNING_RATE, epochs=args.epochs, num_minibatches=MINIBATCHES, clip=0.2, vf_coeff=0.5,
            entropy_coeff=args.entropy, max_grad_norm=MAX_GRAD_NORM,
        )  # fmt: skip
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.ppo.optimizer, 1.0, 0.02, num_updates)

    def batch_of(self, episodes):
        """All agents' steps as tensors, with normalised advantages and value targets."""
        batch = columns(episodes, outputs=["action_logp", "vf_preds"]).get(POLICY)
        if batch is None:
            n = sum(map(len, episodes))
            raise BatchError(f"no agent has acted in {n:,} env steps: there is nothing to learn from")
        batch["vf_preds"] = self.value_norm.denormalize(torch.from_numpy(batch["vf_preds"]))
        add_gae(batch, gamma=self.args.gamma, lambda_=LAMBDA, value_fn=value_fn_of(self.module, self.value_norm))
        batch = to_tensors(batch, ["obs", "actions", "action_logp", "advantages", "value_targets"])
        self.value_norm.update(batch["value_targets"])
        batch["value_targets"] = self.value_norm.normalize(batch["value_targets"])
        advantages = batch["advantages"]
        batch["advantages"] = (advantages - advantages.mean()) / advantages.std().clamp(min=self.args.min_std)
        return batch

    def learn(self, episodes):
        """Returns the losses, means over the minibatches."""
        stats = self.ppo.update(self.batch_of(episodes))
        self.schedule.step()
        return stats


def show(steps, seconds, mean_return):
    print(f"{steps:>10} env steps  {seconds:6.1f} CPU s  mean return {mean_return:8.2f}")


def train(args, folder, report=show):
    config = make_config(args)
    num_updates = -(-args.steps // (args.num_envs * FRAGMENT))
    with (
        fastmarl.MultiAgentEnvRunner(config) as runner,
        (folder / "curve.csv").open("w", newline="", buffering=1) as file,
    ):
        learner = Learner(runner.module[POLICY], args, num_updates)
        curve = csv.writer(file)
        curve.writerow(["env_steps", "cpu_seconds", "episode_return_mean", "entropy", "kl"])
        begun = time.process_time()
        for update in range(num_updates):
            stats = learner.learn(runner.sample())
            if update % max(1, num_updates // 100) == 0 or update == num_updates - 1:
                metrics, seconds = runner.get_metrics(), time.process_time() - begun
                steps, mean = metrics["num_env_steps_sampled_lifetime"], metrics.get("episode_return_mean", math.nan)
                curve.writerow([steps, round(seconds, 2), mean, stats["entropy"], stats["kl"]])
                report(steps, seconds, mean)
        runner.save_to_path(folder / "checkpoint")


def evaluate(args, folder):
    """Play of the checkpoint: greedy, or with --explore as in training."""
    config = replace(make_config(args), num_envs_per_env_runner=100)
    with fastmarl.MultiAgentEnvRunner.from_checkpoint(folder / "checkpoint", config) as runner:
        return fastmarl.evaluate(runner, episodes=args.episodes, seeds=range(args.episodes), explore=args.explore)


def run(args, report=show):
    """Train, save and evaluate."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    keep_freed_memory()
    args.folder.mkdir(parents=True, exist_ok=True)
    train(args, args.folder, report)
    return evaluate(args, args.folder)


def add_arguments(parser):
    """Those of the task and of PPO."""
    parser.add_argument("--env-config", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--num-envs", type=int, default=128, help="copies of the environment")
    parser.add_argument("--gamma", type=float, default=0.95, help="discount")
    parser.add_argument("--epochs", type=int, default=4, help="over the steps of each update")
    parser.add_argument("--entropy", type=float, default=0.01, help="weight of the entropy bonus")
    parser.add_argument(
        "--min-std", type=float, default=1e-6, metavar="STD",
        help="advantages are divided by at least this; where rewards are rare, chance is then not taken for a lesson",
    )  # fmt: skip
    parser.add_argument("--explore", action="store_true", help="sample actions in the evaluation, too")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="fastmarl.simple_spread")
    add_arguments(parser)
    parser.add_argument("--steps", type=int, default=12_000_000, help="env steps")
    parser.add_argument("--episodes", type=int, default=1000, help="of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/ippo"))
    args = parser.parse_args()
    found = run(args)
    play = "sampled" if args.explore else "greedy"
    print(f"{play} play: mean return {found.mean:.2f} ± {found.standard_error:.2f} over {args.episodes} episodes")


if __name__ == "__main__":
    main()
