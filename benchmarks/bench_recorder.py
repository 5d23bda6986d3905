"""The cost of recording actions: the ratio of the CPU times of sampling with and without a record, and its size.

python benchmarks/bench_recorder.py

Two runners take turns, call by call.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch

import fastmarl
import fastmarl.replays

ENVS: dict[str, tuple[int, int, dict[str, Any]]] = {  # number of envs, env steps of each per call, options
    "mpe2.simple_spread_v3": (8, 100, {}),
    "fastmarl.simple_spread": (256, 25, {}),
    "fastmarl.cart_pole": (256, 50, {}),
}


def make_runner(env: str, folder: Path | None) -> fastmarl.MultiAgentEnvRunner:
    num_envs, fragment, options = ENVS[env]
    config = fastmarl.EnvRunnerConfig(
        env=env,
        num_envs_per_env_runner=num_envs,
        rollout_fragment_length=fragment,
        model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False},
        seed=0,
        record_actions=folder,
        **options,
    )
    return fastmarl.MultiAgentEnvRunner(config)


def cpu_seconds(runner: fastmarl.MultiAgentEnvRunner, calls: int) -> float:
    begun = time.process_time()
    for _ in range(calls):
        runner.sample()
    return time.process_time() - begun


def rounds(env: str, n_rounds: int, calls: int, folder: Path) -> Iterator[tuple[float, float]]:
    """Yield the CPU seconds without and with a record, once per round; the order alternates between rounds."""
    with ExitStack() as stack:
        runners = [stack.enter_context(make_runner(env, path)) for path in (None, folder)]
        for runner in runners:
            cpu_seconds(runner, 5)
        for number in range(n_rounds):
            order = (0, 1) if number % 2 else (1, 0)
            seconds = {which: cpu_seconds(runners[which], calls) for which in order}
            yield seconds[0], seconds[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--calls", type=int, default=4, help="per round")
    parser.add_argument("--envs", nargs="+", default=list(ENVS), choices=list(ENVS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for env in args.envs:
        folder = Path(tempfile.mkdtemp())
        try:
            measured = list(rounds(env, args.rounds, args.calls, folder))
            size = sum(path.stat().st_size for path in folder.glob("*.actions"))
            num_envs, fragment, _ = ENVS[env]
            recording = fastmarl.replays.Recording(folder)
            agents = len(recording[0].meta["spaces"])
            agent_steps = agents * sum(episode.length for episode in recording)
            per_step = 1e6 / (args.calls * num_envs * fragment * agents)
            ratios = sorted(record / plain for plain, record in measured)
            differences = sorted(record - plain for plain, record in measured)
            plain = median(plain for plain, _ in measured)
            print(
                f"{env:24} {plain * per_step:7.3f} us an agent step; with a record {median(ratios):.4f} "
                f"(quartiles {ratios[len(ratios) // 4]:.4f} to {ratios[-len(ratios) // 4]:.4f}) times that, "
                f"{1e3 * median(differences) * per_step:+.1f} ns; {size / agent_steps:.2f} bytes an agent step"
            )
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
