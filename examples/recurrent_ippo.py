"""Recurrent IPPO on CartPole without velocities: an LSTM finds out from positions and angles how fast they change.

python examples/recurrent_ippo.py --steps 200000 --folder runs/recurrent_ippo

Two agents balance a pole each, for 500 env steps at most, so an episode returns up to 1000. Random play returns 44.
200,000 env steps, 13 CPU seconds, bring greedy play to 1000; a feedforward network, which --memoryless trains, gets
to 86 (docs/gallery.md has figures). The folder gets the learning curve and a checkpoint, from which the policy that is
evaluated at the end is read again.
"""

import argparse
import csv
import time
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import torch

import fastmarl
from fastmarl.batches import add_gae, columns, sequences
from fastmarl.connectors import Connector
from fastmarl.learning import PPOLearner, ValueNorm, last_values_of, to_tensors

GAMMA, LAMBDA, EPOCHS, MINIBATCHES, MAX_GRAD_NORM = 0.99, 0.95, 4, 4, 0.5
NUM_ENVS, NUM_AGENTS, FRAGMENT, LEARNING_RATE = 32, 2, 64, 2e-3
SEQUENCE, BURN_IN = 16, 4  # steps
VISIBLE = [0, 2]  # position and angle; between them are the velocities
POLICY = "default_policy"


class HideVelocities(Connector):
    """Leaves an agent the position of its cart and the angle of its pole."""

    lane_arrays = ()

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        space = input_observation_space
        return gym.spaces.Box(space.low[VISIBLE], space.high[VISIBLE], dtype=space.dtype)

    def __call__(self, obs, rows):  # [n, 4] -> [n, 2]
        return obs.take(VISIBLE, 1)


def make_config(args):
    memory = {} if args.memoryless else {"use_lstm": True, "lstm_cell_size": 64}
    return fastmarl.EnvRunnerConfig(
        env="fastmarl.cart_pole",
        env_config={"num_agents": NUM_AGENTS},
        num_envs_per_env_runner=NUM_ENVS,
        rollout_fragment_length=FRAGMENT,
        env_to_module_connector=HideVelocities(),
        model_config={"fcnet_hiddens": [64], "fcnet_activation": "tanh", **memory},
        episode_lookback_horizon=BURN_IN,
        seed=args.seed,
    )


class Learner:
    """Trains a module in place, so that its runner acts with the newest weights."""

    def __init__(self, module, num_updates):
        self.module, self.value_norm = module, ValueNorm()
        self.ppo = PPOLearner(
            module, lr=LEARNING_RATE, epochs=EPOCHS, num_minibatches=MINIBATCHES, max_grad_norm=MAX_GRAD_NORM
        )
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.ppo.optimizer, 1.0, 0.02, num_updates)

    def estimates(self, episodes):
        """Normalised advantages and value targets, a row for each step."""
        outputs = ["vf_preds", "state_out"] if self.module.is_stateful() else ["vf_preds"]
        batch = columns(episodes, outputs=outputs)[POLICY]
        batch["vf_preds"] = self.value_norm.denormalize(torch.from_numpy(batch["vf_preds"]))
        add_gae(batch, gamma=GAMMA, lambda_=LAMBDA, last_values=last_values_of(self.module, batch, self.value_norm))
        advantages, targets = (torch.from_numpy(batch[name]) for name in ("advantages", "value_targets"))
        self.value_norm.update(targets)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        return {"advantages": advantages, "value_targets": self.value_norm.normalize(targets)}

    def learn(self, episodes):
        """Returns the losses, means over the minibatches."""
        extra = {POLICY: self.estimates(episodes)}
        batch = sequences(episodes, max_seq_len=SEQUENCE, burn_in=BURN_IN, extra_columns=extra)[POLICY]
        names = ["obs", "actions", "action_logp", "advantages", "value_targets", "loss_mask"]
        batch = to_tensors(batch, [*names, "state_in"] if self.module.is_stateful() else names)
        stats = self.ppo.update(batch)
        self.schedule.step()
        return stats


def train(args, folder):
    config = make_config(args)
    num_updates = -(-args.steps // (NUM_ENVS * FRAGMENT))
    with (
        fastmarl.MultiAgentEnvRunner(config) as runner,
        (folder / "curve.csv").open("w", newline="", buffering=1) as file,
    ):
        learner = Learner(runner.module[POLICY], num_updates)
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
    parser.add_argument("--memoryless", action="store_true", help="a feedforward network instead, for comparison")
    parser.add_argument("--steps", type=int, default=200_000, help="env steps")
    parser.add_argument("--episodes", type=int, default=1000, help="of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/recurrent_ippo"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    args.folder.mkdir(parents=True, exist_ok=True)
    train(args, args.folder)
    mean, error = evaluate(args, args.folder)
    print(f"greedy play: mean return {mean:.2f} ± {error:.2f} over {args.episodes} episodes")


if __name__ == "__main__":
    main()
