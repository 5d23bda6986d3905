"""Compare a PPO iteration that samples in the background with one that first samples and then learns.

python benchmarks/bench_background.py

It measures ratios of the time, and of the CPU time of both processes, to an iteration with one thread. With two free
cores an iteration takes at least as long as the busier process; the number of cores that both have used is printed,
too. The same ratio of an iteration with a thread per core, without a background process, shows what threads save.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import psutil
import torch

import fastmarl
from fastmarl.batches import add_gae, columns
from fastmarl.distributed import BackgroundSampler
from fastmarl.learning import PPOLearner, make_value_fn, to_tensors

ENVS = {"fastmarl.simple_spread": 128, "mpe2.simple_spread_v3": 16}
FRAGMENT, MINIBATCHES = 25, 4
NAMES = ["obs", "actions", "action_logp", "advantages", "value_targets"]
Batches = Callable[[], Any]
Seconds = tuple[float, float]


def make_config(env: str, num_threads: int | None) -> fastmarl.EnvRunnerConfig:
    return fastmarl.EnvRunnerConfig(
        env=env,
        num_envs_per_env_runner=ENVS[env],
        rollout_fragment_length=FRAGMENT,
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        seed=0,
        num_threads=num_threads,
    )


class Learner:
    """Trains a module in place."""

    def __init__(self, module: fastmarl.RLModule, epochs: int, num_threads: int | None):
        self._ppo = PPOLearner(module, lr=1e-4, epochs=epochs, num_minibatches=MINIBATCHES, num_threads=num_threads)

    def learn(self, batch: Any) -> None:
        add_gae(batch, gamma=0.95, lambda_=0.95, value_fn=make_value_fn(self._ppo.module))
        self._ppo.update(to_tensors(batch, NAMES))


def iterations(n: int, next_batch: Batches, learn: Callable[[Any], None], publish: Callable[[], Any]) -> Seconds:
    """Return the mean (seconds, CPU seconds of this process) of an iteration."""
    begun, cpu = time.perf_counter(), time.process_time()
    for _ in range(n):
        learn(next_batch()["default_policy"])
        publish()
    return (time.perf_counter() - begun) / n, (time.process_time() - cpu) / n


def rounds(env: str, epochs: int, n_rounds: int, n: int) -> Iterator[dict[str, float]]:
    """Yield the ratios of the times of an iteration, once per round."""
    config = make_config(env, 1)
    with (
        fastmarl.MultiAgentEnvRunner(config) as runner,
        fastmarl.MultiAgentEnvRunner(make_config(env, None)) as threaded,
        BackgroundSampler(config) as sampler,
    ):
        here, with_threads, there = (
            Learner(each.module["default_policy"], epochs, num_threads)
            for each, num_threads in ((runner, 1), (threaded, None), (sampler, 1))
        )
        (child,) = (each for each in psutil.Process().children() if "resource_tracker" not in " ".join(each.cmdline()))
        for _ in range(n_rounds):
            foreground = iterations(n, lambda: columns(runner.sample()), here.learn, lambda: None)
            threads = iterations(n, lambda: columns(threaded.sample()), with_threads.learn, lambda: None)
            iterations(1, sampler.next, there.learn, sampler.set_weights)  # from now on a batch is sampled in advance
            before = sum(child.cpu_times()[:2])
            background = iterations(n, sampler.next, there.learn, sampler.set_weights)
            of_child = (sum(child.cpu_times()[:2]) - before) / n
            time.sleep(2 * foreground[0])  # until the batch sampled in advance is ready
            yield {
                "time": background[0] / foreground[0],
                "CPU time of the learner": background[1] / foreground[1],
                "CPU time of the sampler": of_child / foreground[1],
                "cores": (background[1] + of_child) / background[0],
                "time with threads instead": threads[0] / foreground[0],
                "CPU ms of the plain one": 1e3 * foreground[1],
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--iterations", type=int, default=20, help="per round")
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=list(ENVS))
    parser.add_argument("--epochs", type=int, nargs="+", default=[1, 4])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for env in args.envs:
        for epochs in args.epochs:
            _, *measured = rounds(env, epochs, args.rounds + 1, args.iterations)
            print(f"{env}, {epochs} epochs")
            for name in measured[0]:
                values = sorted(each[name] for each in measured)
                print(f"  {name:25} {median(values):7.2f} ({values[0]:.2f} to {values[-1]:.2f})")


if __name__ == "__main__":
    main()
