"""PPO with two competing teams and one policy per team: three hunters and their prey on simple_tag.

python examples/two_policies.py --steps 3000000 --folder runs/two_policies

At the end, hunters and prey of the restored checkpoint play each other and random players. --folder receives the
learning curve and the checkpoint.
"""

import argparse
import csv
import math
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.learning import PPOLearner, ValueNorm, make_value_fn, to_tensors

GAMMA, LAMBDA, EPOCHS, MINIBATCHES, MAX_GRAD_NORM, ENTROPY = 0.95, 0.95, 4, 4, 0.5, 0.01
NUM_ENVS, FRAGMENT, LEARNING_RATE = 128, 25, 1e-3
NUM_ACTIONS = 5
ROLES = ("hunters", "prey")
TOUCH = 10  # reward of each hunter per touch


class RandomPlayer(fastmarl.RLModule):
    """Plays uniformly random actions."""

    def _forward(self, batch, **kwargs):
        return {"actions": torch.randint(NUM_ACTIONS, batch["obs"].shape[:1])}


class Learner:
    """Trains a module in place, so that its runner acts with the latest weights."""

    def __init__(self, module, num_updates):
        self.module, self.value_norm = module, ValueNorm()
        self.ppo = PPOLearner(
            module, lr=LEARNING_RATE, epochs=EPOCHS, num_minibatches=MINIBATCHES, entropy_coeff=ENTROPY,
            normalize_advantages=True, max_grad_norm=MAX_GRAD_NORM,
        )  # fmt: skip
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.ppo.optimizer, 1.0, 0.02, num_updates)

    def learn(self, batch):
        """Update the module on its columns; returns the losses, averaged over the minibatches."""
        batch["vf_preds"] = self.value_norm.denormalize(torch.from_numpy(batch["vf_preds"]))
        add_gae(batch, gamma=GAMMA, lambda_=LAMBDA, value_fn=make_value_fn(self.module, self.value_norm))
        batch = to_tensors(batch, ["obs", "actions", "action_logp", "advantages", "value_targets"])
        self.value_norm.update(batch["value_targets"])
        batch["value_targets"] = self.value_norm.normalize(batch["value_targets"])
        stats = self.ppo.update(batch)
        self.schedule.step()
        return stats


def role_of(agent_id, episode=None, **kwargs):
    """Map agents (adversary_0, adversary_1, ..., agent_0) to policies."""
    return "hunters" if agent_id.startswith("adversary") else "prey"


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        env=args.env,
        num_envs_per_env_runner=NUM_ENVS,
        rollout_fragment_length=FRAGMENT,
        policies=set(ROLES),  # default networks, each for the observations of its agents
        policy_mapping_fn=role_of,
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        seed=args.seed,
    )


def train(args, runner):
    num_updates = -(-args.steps // (NUM_ENVS * FRAGMENT))
    learners = {role: Learner(runner.module[role], num_updates) for role in ROLES}
    with (args.folder / "curve.csv").open("w", newline="", buffering=1) as file:
        curve = csv.writer(file)
        curve.writerow(["env_steps", "cpu_seconds", "hunters", "prey"])
        begun = time.process_time()
        for update in range(num_updates):
            batches = columns(runner.sample(), outputs=["action_logp", "vf_preds"])
            for role, batch in batches.items():
                learners[role].learn(batch)
            if update % max(1, num_updates // 50) == 0 or update == num_updates - 1:
                metrics, seconds = runner.get_metrics(), time.process_time() - begun
                steps, returns = metrics["num_env_steps_sampled_lifetime"], metrics["module_episode_returns_mean"]
                hunters, prey = [returns.get(role, math.nan) for role in ROLES]
                curve.writerow([steps, round(seconds, 2), hunters, prey])
                print(f"{steps:>10} env steps  {seconds:6.1f} CPU s  hunters {hunters:6.2f}, prey {prey:7.2f}")
    runner.save_to_path(args.folder / "checkpoint")


def evaluate(args, trained):
    """Match every pair of teams; print the touches per episode and the return of the prey."""
    players = {"trained": trained, "random": {role: RandomPlayer() for role in ROLES}}
    for hunters, prey in product(players, players):
        modules = {"hunters": players[hunters]["hunters"], "prey": players[prey]["prey"]}
        found = fastmarl.evaluate(
            modules, args.env, episodes=args.episodes, seeds=range(args.episodes), policy_mapping_fn=role_of
        )
        gained, lost = found.by_agent["adversary_0"], found.by_agent["agent_0"]
        touches, error = gained.mean / TOUCH, gained.standard_error / TOUCH
        print(f"{hunters} hunters, {prey} prey: {touches:.2f} ± {error:.2f} touches an episode, "
              f"the prey's return {lost.mean:.1f} ± {lost.standard_error:.1f}")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="fastmarl.simple_tag", help="or mpe2.simple_tag_v3, the original")
    parser.add_argument("--steps", type=int, default=3_000_000, help="env steps")
    parser.add_argument("--episodes", type=int, default=1000, help="episodes of each match at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/two_policies"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    args.folder.mkdir(parents=True, exist_ok=True)
    config = make_config(args)
    with fastmarl.MultiAgentEnvRunner(config) as runner:
        train(args, runner)
    with fastmarl.MultiAgentEnvRunner.from_checkpoint(args.folder / "checkpoint", replace(config, seed=1)) as runner:
        evaluate(args, runner.module)


if __name__ == "__main__":
    main()
