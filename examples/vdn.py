"""VDN (Sunehag et al. 2018) on simple_spread: 3 agents learn action values whose sum is the team's.

python examples/vdn.py --steps 1000000 --folder runs/vdn

Random play returns about -79 an episode. 1 million env steps, 50 CPU seconds, bring greedy play to -32 (docs/gallery.md
has figures). Double Q-learning from a replay of whole episodes, with a slowly moving target network. The folder gets
the learning curve and a checkpoint, from which the policy that is evaluated at the end is read again.
"""

import argparse
import copy
import csv
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fastmarl
from fastmarl.batches import aligned
from fastmarl.learning import flat_parameters, to_tensors

GAMMA, LEARNING_RATE, MAX_GRAD_NORM, TARGET_RATE, REWARD_SCALE = 0.9, 2e-3, 10.0, 0.01, 0.1
NUM_ENVS, FRAGMENT, UPDATES, BATCH = 32, 25, 16, 256  # 25 steps are a whole episode of simple_spread
CAPACITY = 20_000  # chunks
EPSILON, EPSILON_STEPS = 0.05, 100_000
POLICY = "default_policy"


class QNet(fastmarl.modules.DefaultRLModule):
    """Action values, by which it acts greedily; while it explores, any action is taken with probability epsilon."""

    def _forward_exploration(self, batch, t, **kwargs):
        values = self._forward(batch)["action_dist_inputs"]
        epsilon = max(EPSILON, 1 - (1 - EPSILON) * t / EPSILON_STEPS)
        greedy = nn.functional.one_hot(values.argmax(-1), values.shape[-1])
        return {"action_dist_inputs": torch.log((1 - epsilon) * greedy + epsilon / values.shape[-1])}


def make_config(args):
    return fastmarl.EnvRunnerConfig(
        env=args.env,
        num_envs_per_env_runner=NUM_ENVS,
        rollout_fragment_length=FRAGMENT,
        rl_module_spec=fastmarl.RLModuleSpec(module_class=QNet, inference_only=True),
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"},
        seed=args.seed,
    )


class Replay:
    """The newest chunks of a team's episodes, all of the same length: each observation is there once."""

    def __init__(self, capacity, seed):
        self.capacity, self.rng = capacity, np.random.default_rng(seed)
        self.size = self.next = 0
        self.columns = {}  # name -> [capacity, T, A, ...], and "obs" [capacity, T + 1, A, ...]

    def add(self, batch):
        """Chunks as `aligned()` returns them, [T, E, A, ...]."""
        new = {name: batch[name] for name in ("actions", "rewards", "terminateds")}
        new["obs"] = np.concatenate([batch["obs"], batch["final_obs"][None]])
        places = (self.next + np.arange(len(batch["seq_lens"]))) % self.capacity
        for name, column in new.items():
            if name not in self.columns:
                self.columns[name] = np.zeros((self.capacity, len(column), *column.shape[2:]), column.dtype)
            self.columns[name][places] = column.swapaxes(0, 1)
        self.next = (places[-1] + 1) % self.capacity
        self.size = min(self.size + len(places), self.capacity)

    def sample(self, n):
        """Any n of the team's steps: tensors [n, A, ...]."""
        length = self.columns["rewards"].shape[1]
        chunks, steps = self.rng.integers(self.size, size=n), self.rng.integers(length, size=n)
        rows = {name: column[chunks, steps] for name, column in self.columns.items()}
        return to_tensors(rows | {"new_obs": self.columns["obs"][chunks, steps + 1]})


class Learner:
    """Trains a module in place, so that its runner acts with the newest weights."""

    def __init__(self, module, num_updates):
        self.module, self.target = module, copy.deepcopy(module)
        self.parameters, self.target_parameters = flat_parameters(self.module), flat_parameters(self.target)
        self.optimizer = torch.optim.Adam([self.parameters], lr=LEARNING_RATE, fused=True)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.02, num_updates)

    def loss(self, rows):
        """The error of the team's value: its agents' values, against what they were paid and what comes after it."""
        taken = self.values_of(self.module, rows["obs"]).gather(-1, rows["actions"][..., None])
        with torch.no_grad():  # double Q-learning: one network chooses, the other one says what that is worth
            best = self.values_of(self.module, rows["new_obs"]).argmax(-1, keepdim=True)
            after = self.values_of(self.target, rows["new_obs"]).gather(-1, best).squeeze(-1)
            after = after.masked_fill(rows["terminateds"], 0.0)
            target = REWARD_SCALE * rows["rewards"].sum(-1) + GAMMA * after.sum(-1)
        return nn.functional.smooth_l1_loss(taken.squeeze(-1).sum(-1), target)

    def values_of(self, module, obs):
        """Of observations [n, A, ...]: [n, A, actions]."""
        return module.forward_train({"obs": obs})["action_dist_inputs"]

    def learn(self, rows):
        """Returns the loss."""
        self.optimizer.zero_grad()
        loss = self.loss(rows)
        loss.backward()
        nn.utils.clip_grad_norm_([self.parameters], MAX_GRAD_NORM)
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            self.target_parameters.lerp_(self.parameters, TARGET_RATE)
        return loss.item()


def train(args, folder):
    config = make_config(args)
    num_rounds = -(-args.steps // (NUM_ENVS * FRAGMENT))
    with (
        fastmarl.MultiAgentEnvRunner(config) as runner,
        (folder / "curve.csv").open("w", newline="", buffering=1) as file,
    ):
        learner, replay = Learner(runner.module[POLICY], num_rounds * UPDATES), Replay(CAPACITY, args.seed)
        curve = csv.writer(file)
        curve.writerow(["env_steps", "cpu_seconds", "episode_return_mean", "loss"])
        begun = time.process_time()
        for k in range(num_rounds):
            replay.add(aligned(runner.sample(), outputs=[])[POLICY])
            losses = [learner.learn(replay.sample(BATCH)) for _ in range(UPDATES)]
            if k % max(1, num_rounds // 100) == 0 or k == num_rounds - 1:
                metrics, seconds = runner.get_metrics(), time.process_time() - begun
                steps, mean = metrics["num_env_steps_sampled_lifetime"], metrics["episode_return_mean"]
                curve.writerow([steps, round(seconds, 2), mean, losses[-1]])
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
    parser.add_argument("--steps", type=int, default=1_000_000, help="env steps")
    parser.add_argument("--episodes", type=int, default=1000, help="of the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/vdn"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are small
    args.folder.mkdir(parents=True, exist_ok=True)
    train(args, args.folder)
    mean, error = evaluate(args, args.folder)
    print(f"greedy play: mean return {mean:.2f} ± {error:.2f} over {args.episodes} episodes")


if __name__ == "__main__":
    main()
