"""PPO with V-trace on simple_spread, sampled in another process during learning (RLlib calls it APPO).

python examples/async_vtrace.py --steps 6000000 --folder runs/async_vtrace

Random play returns about -79 per episode. 6 million env steps raise greedy play to -25; on two free cores that took 4
minutes (benchmarks/results). --folder receives the learning curve and a checkpoint, from which the policy is restored
for the final evaluation.
"""

import argparse
import csv
import time
from dataclasses import replace
from pathlib import Path

import torch

import fastmarl
from fastmarl.batches import add_vtrace
from fastmarl.distributed import BackgroundSampler
from fastmarl.learning import flat_parameters, minibatches, normalized, ppo_loss, to_tensors

GAMMA, LAMBDA, EPOCHS, MINIBATCHES, MAX_GRAD_NORM = 0.95, 0.95, 4, 4, 0.5
NUM_ENVS, FRAGMENT, LEARNING_RATE = 128, 25, 2e-3
POLICY = "default_policy"


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        env=args.env,
        num_envs_per_env_runner=NUM_ENVS,
        rollout_fragment_length=FRAGMENT,
        reward_scale=0.1,
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        seed=args.seed,
    )


class Learner:
    """Trains a module in place."""

    def __init__(self, module, num_updates):
        self.module = module
        self.parameters = flat_parameters(module)
        self.optimizer = torch.optim.Adam([self.parameters], lr=LEARNING_RATE, eps=1e-5, fused=True)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.02, num_updates)

    def rows_of(self, batch):
        """Convert a batch from older weights to tensors, with "action_logp" and targets of the current weights."""
        rows = to_tensors(batch, ["obs", "actions"])
        with torch.no_grad():
            outputs = self.module.forward_train(rows)
            last_values = self.module.forward_train(to_tensors({"obs": batch["final_obs"]}))["vf_preds"]
            distribution = self.module.get_train_action_dist_cls().from_logits(outputs["action_dist_inputs"])
            rows["action_logp"] = distribution.logp(rows["actions"])
        values = {"values": outputs["vf_preds"], "last_values": last_values}
        add_vtrace(batch, rows["action_logp"], gamma=GAMMA, lambda_=LAMBDA, **values)
        rows |= to_tensors(batch, ["advantages", "value_targets"])
        rows["advantages"] = normalized(rows["advantages"])
        return rows

    def learn(self, batch):
        """Update the module; returns the losses of the last minibatch."""
        rows, stats = self.rows_of(batch), {}
        for part in minibatches(rows, -(-len(rows["actions"]) // MINIBATCHES), EPOCHS):
            self.optimizer.zero_grad()
            ppo_loss(self.module, part, clip=0.2, vf_coeff=0.5, entropy_coeff=0.01, stats=stats).backward()
            torch.nn.utils.clip_grad_norm_([self.parameters], MAX_GRAD_NORM)
            self.optimizer.step()
        self.schedule.step()
        return {name: value.item() for name, value in stats.items()}


def train(args, folder):
    """Train and return the modules."""
    num_updates = -(-args.steps // (NUM_ENVS * FRAGMENT * args.processes))
    options = {"processes": args.processes, "max_policy_lag": args.max_policy_lag}
    with (
        BackgroundSampler(make_config(args), **options) as sampler,
        (folder / "curve.csv").open("w", newline="", buffering=1) as file,
    ):
        learner = Learner(sampler.module[POLICY], num_updates)
        curve = csv.writer(file)
        curve.writerow(["env_steps", "seconds", "seconds_waited", "episode_return_mean", "entropy", "kl"])
        begun, waited = time.perf_counter(), 0.0
        for update in range(num_updates):
            stats = learner.learn(sampler.next()[POLICY])
            sampler.set_weights()
            if update % max(1, num_updates // 100) == 0 or update == num_updates - 1:
                metrics, seconds = sampler.get_metrics(), time.perf_counter() - begun
                waited += metrics["seconds_waited"]
                steps, mean = metrics["num_env_steps_sampled_lifetime"], metrics["episode_return_mean"]
                curve.writerow([steps, round(seconds, 2), round(waited, 2), mean, stats["entropy"], stats["kl"]])
                print(f"{steps:>10} env steps  {seconds:6.1f} s, waited {waited:6.1f} s  mean return {mean:8.2f}")
        return sampler.module


def evaluate(args, folder):
    """Return the mean return of greedy play and its standard error."""
    config = replace(make_config(args), num_envs_per_env_runner=100)
    with fastmarl.MultiAgentEnvRunner.from_checkpoint(folder / "checkpoint", config) as runner:
        episodes = runner.evaluate(args.episodes, seeds=range(args.episodes))
        returns = torch.tensor([episode.get_return() for episode in episodes]) / config.reward_scale
        return returns.mean().item(), (returns.std() / len(returns) ** 0.5).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="fastmarl.simple_spread")
    parser.add_argument("--steps", type=int, default=6_000_000, help="env steps")
    parser.add_argument("--episodes", type=int, default=1000, help="episodes of the evaluation")
    parser.add_argument("--processes", type=int, default=1, help="number of sampling processes")
    parser.add_argument("--max-policy-lag", type=int, default=1, help="updates by which weights may be behind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/async_vtrace"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    args.folder.mkdir(parents=True, exist_ok=True)
    module = train(args, args.folder)
    with fastmarl.MultiAgentEnvRunner(make_config(args)) as runner:
        runner.set_weights(module.get_state())
        runner.save_to_path(args.folder / "checkpoint")
    mean, error = evaluate(args, args.folder)
    print(f"greedy play: mean return {mean:.2f} ± {error:.2f} over {args.episodes} episodes")


if __name__ == "__main__":  # each sampling process imports this script
    main()
