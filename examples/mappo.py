"""MAPPO (Yu et al. 2022) on simple_spread: 3 agents share an actor, and a critic of its own sees the whole state.

python examples/mappo.py --steps 3000000 --folder runs/mappo

Random play returns about -79 an episode. 3 million env steps, a minute and a half of a core, bring greedy play to -28
(docs/gallery.md has figures). The folder gets the learning curve and a checkpoint of the actor, from which the policy
that is evaluated at the end is read again.
"""

import argparse
import csv
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import fastmarl
from fastmarl.batches import add_aligned_gae, aligned
from fastmarl.learning import ValueNorm, flat_parameters, minibatches, ppo_loss, to_tensors

GAMMA, LAMBDA, EPOCHS, MINIBATCHES, MAX_GRAD_NORM = 0.95, 0.95, 4, 4, 0.5
NUM_ENVS, FRAGMENT, LEARNING_RATE = 128, 25, 2e-3
POLICY = "default_policy"


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        env=args.env,
        num_envs_per_env_runner=NUM_ENVS,
        rollout_fragment_length=FRAGMENT,
        rl_module_spec=fastmarl.RLModuleSpec(inference_only=True),  # an actor, without a value head
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
        record_env_state=True,
        seed=args.seed,
    )


class Learner:
    """Trains an actor in place, so that its runner acts with the newest weights, and a critic of the env's state."""

    def __init__(self, actor, state_size, num_updates):
        layers = nn.Linear(state_size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
        self.actor, self.critic = actor, nn.Sequential(*layers)
        self.parameters = flat_parameters(nn.ModuleList([self.actor, self.critic]))
        self.optimizer = torch.optim.Adam([self.parameters], lr=LEARNING_RATE, eps=1e-5, fused=True)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.02, num_updates)
        self.value_norm = ValueNorm()

    def batch_of(self, episodes):
        """A row for each env step of each episode, [T * E, ...]: the state, and what each agent saw and did."""
        batch = aligned(episodes, outputs=["action_logp"])[POLICY]
        states = torch.from_numpy(batch["env_state"])  # [T + 1, E, ...]
        with torch.no_grad():
            values = self.value_norm.denormalize(self.values_of(states))
        add_aligned_gae(batch, values, gamma=GAMMA, lambda_=LAMBDA)
        batch["env_state"], batch["loss_mask"] = batch["env_state"][:-1], batch["active"]
        names = ["env_state", "loss_mask", "obs", "actions", "action_logp", "advantages", "value_targets"]
        batch = {name: column.flatten(0, 1) for name, column in to_tensors(batch, names).items()}
        active, advantages = batch["loss_mask"], batch["advantages"]
        self.value_norm.update(batch["value_targets"][active])
        batch["value_targets"] = self.value_norm.normalize(batch["value_targets"])
        batch["advantages"] = (advantages - advantages[active].mean()) / (advantages[active].std() + 1e-6)
        return batch

    def values_of(self, states):
        """Of states [..., k]: [...], normalised."""
        return self.critic(states).squeeze(-1)

    def loss(self, rows, stats):
        """The actor's, of each agent's steps, and the critic's, whose value of a state stands for all agents."""
        values = self.values_of(rows.pop("env_state"))[:, None]  # [n, 1]
        errors = (values - rows.pop("value_targets"))[rows["loss_mask"]]
        of_agents = {name: column.flatten(0, 1) for name, column in rows.items()}
        actor_loss = ppo_loss(self.actor, of_agents, clip=0.2, vf_coeff=0.0, entropy_coeff=0.01, stats=stats)
        return actor_loss + 0.5 * errors.square().mean()

    def learn(self, episodes):
        """Returns the losses of the last minibatch."""
        batch, stats = self.batch_of(episodes), {}
        size = -(-len(batch["actions"]) // MINIBATCHES)
        for rows in minibatches(batch, size, EPOCHS):
            self.optimizer.zero_grad()
            self.loss(rows, stats).backward()
            nn.utils.clip_grad_norm_([self.parameters], MAX_GRAD_NORM)
            self.optimizer.step()
        self.schedule.step()
        return {name: value.item() for name, value in stats.items()}


def train(args, folder):
    num_updates = -(-args.steps // (NUM_ENVS * FRAGMENT))
    config = make_config(args)
    with (
        fastmarl.MultiAgentEnvRunner(config) as runner,
        (folder / "curve.csv").open("w", newline="", buffering=1) as file,
    ):
        learner = Learner(runner.module[POLICY], runner.env.envs[0].state_space.shape[0], num_updates)
        curve = csv.writer(file)
        curve.writerow(["env_steps", "cpu_seconds", "episode_return_mean", "entropy", "kl"])
        begun = time.process_time()
        for update in range(num_updates):
            stats = learner.learn(runner.sample())
            if update % max(1, num_updates // 100) == 0 or update == num_updates - 1:
                metrics, seconds = runner.get_metrics(), time.process_time() - begun
                steps, mean = metrics["num_env_steps_sampled_lifetime"], metrics["episode_return_mean"]
                curve.writerow([steps, round(seconds, 2), mean, stats["entropy"], stats["kl"]])
                print(f"{steps:>10} env steps  {seconds:6.1f} CPU seconds  mean return {mean:8.2f}")
        runner.save_to_path(folder / "checkpoint")


def evaluate(args, folder):
    """Mean return of greedy play, and its standard error."""
    config = replace(make_config(args), num_envs_per_env_runner=100)
    with fastmarl.MultiAgentEnvRunner.from_checkpoint(folder / "checkpoint", config) as runner:
        episodes = runner.evaluate(args.episodes, seeds=range(args.episodes))
        returns = torch.tensor([episode.get_return() for episode in episodes])
        return returns.mean().item(), (returns.std() / len(returns) ** 0.5).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="fastmarl.simple_spread")
    parser.add_argument("--steps", type=int, default=3_000_000, help="env steps")
    parser.add_argument("--episodes", type=int, default=1000, help="of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/mappo"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    args.folder.mkdir(parents=True, exist_ok=True)
    train(args, args.folder)
    mean, error = evaluate(args, args.folder)
    print(f"greedy play: mean return {mean:.2f} ± {error:.2f} over {args.episodes} episodes")


if __name__ == "__main__":
    main()
