"""PPO for all hares with one network; Ctrl-C finishes the iteration, saves and stops.

python train.py --folder runs/first
python train.py --folder runs/first --resume
"""

import argparse
import signal
import sys
import threading
from pathlib import Path

import torch
from meadow import Meadow
from network import HareNet

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.learning import MetricsWriter, PPOLearner, make_value_fn

SAVE_EVERY = 20  # iterations


def make_config(folder: Path, seed: int, num_envs: int, net: HareNet) -> fastmarl.EnvRunnerConfig:
    return fastmarl.EnvRunnerConfig(
        env=Meadow,
        num_envs_per_env_runner=num_envs,
        batch_mode="complete_episodes",  # each iteration samples one whole episode of each environment
        policies={"hares": net},
        record_actions=folder / "record",
        seed=seed,
    )


class Training:
    """A runner and a learner, saved and restored together."""

    def __init__(self, folder: Path, seed: int, num_envs: int):
        torch.manual_seed(seed)  # for the first weights
        self.folder, self.iteration = folder, 0
        self.generator = torch.Generator().manual_seed(seed)  # for the order of rows in an update
        self.runner = fastmarl.MultiAgentEnvRunner(make_config(folder, seed, num_envs, HareNet()))
        self.module = self.runner.module["hares"]
        self.learner = PPOLearner(
            self.module, lr=1e-3, epochs=4, num_minibatches=8, normalize_advantages=True, generator=self.generator
        )

    def step(self) -> dict[str, float]:
        """Sample once and learn from it; returns the learner's statistics."""
        batch = columns(self.runner.sample())["hares"]
        batch["rewards"] *= 0.1  # scales returns to the order of 1
        add_gae(batch, gamma=0.97, lambda_=0.95, value_fn=make_value_fn(self.module))
        self.iteration += 1
        return self.learner.update(batch)

    def save(self) -> None:
        """Write a checkpoint, which is renamed when it is complete."""
        part = self.folder / "part"
        self.runner.save_to_path(part)
        learner = {"optimizer": self.learner.optimizer.state_dict(), "generator": self.generator.get_state()}
        torch.save({"iteration": self.iteration, **learner}, part / "learner.pt")
        part.rename(self.folder / f"checkpoint-{self.iteration:04}")

    def restore(self) -> None:
        path = newest_checkpoint(self.folder)
        self.runner.restore_from_path(path)
        state = torch.load(path / "learner.pt")
        self.iteration = state["iteration"]
        self.learner.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])


def newest_checkpoint(folder: Path) -> Path:
    checkpoints = sorted(folder.glob("checkpoint-*"))
    if not checkpoints:
        sys.exit(f"there is no checkpoint in {folder}")
    return checkpoints[-1]


def train(training: Training, iterations: int, writer: MetricsWriter) -> None:
    """Train up to iteration number `iterations`, or until Ctrl-C."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    saved = training.iteration
    while training.iteration < iterations and not stop.is_set():
        stats = training.step()
        metrics = training.runner.get_metrics()
        steps, mean = metrics["num_env_steps_sampled_lifetime"], metrics["episode_return_mean"]
        writer.write(steps, metrics, stats)
        print(f"iteration {training.iteration:4}  {steps:8,} env steps  mean return {mean:7.2f}")
        if training.iteration % SAVE_EVERY == 0:
            training.save()
            saved = training.iteration
    if training.iteration > saved:
        training.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/first"))
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--num-envs", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the folder's newest checkpoint")
    args = parser.parse_args()
    if args.resume:
        newest_checkpoint(args.folder)  # ends the program if there is none
    elif args.folder.exists():
        parser.error(f"{args.folder} already exists: continue its run with --resume, or choose another --folder")
    torch.set_num_threads(1)  # the network is small
    args.folder.mkdir(parents=True, exist_ok=args.resume)
    training = Training(args.folder, args.seed, args.num_envs)
    if args.resume:
        training.restore()
    resume_step = training.runner.get_metrics()["num_env_steps_sampled_lifetime"] if args.resume else None
    files = MetricsWriter(csv_path=args.folder / "metrics.csv", tensorboard_folder=args.folder, resume_step=resume_step)
    with training.runner, files as writer:
        train(training, args.iterations, writer)


if __name__ == "__main__":
    main()
