"""CPU time of a warm PPO iteration on simple_spread: `examples/ippo.py` and JAX, in turn on one core.

    python benchmarks/bench_jax.py

`make build/peers/jax/.made` creates the environment of JAX. Each turn is a process of its own; figures are medians over
turns of each turn's median. For the times of JAX's sampling and learning, both are compiled separately, so their sum
may exceed the iteration, which is compiled as a whole.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WARM_UP = 3  # iterations
PARTS = {"iteration_ms": "ms", "sampling_ms": "ms", "learning_ms": "ms", "compilation_s": "s"}
Turn = dict[str, float]


def time_iterations(num_envs: int, iterations: int, seed: int) -> Turn:
    """Return medians over our iterations, in ms of CPU time."""
    sys.path.insert(0, str(ROOT / "examples"))
    import ippo
    import torch

    import fastmarl
    from fastmarl.cli.train_options import parse_options
    from fastmarl.learning import keep_freed_memory

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    keep_freed_memory()
    args = parse_options(ippo.ALGORITHM, ["--num-envs", str(num_envs), "--seed", str(seed)])
    sampling, learning, curve = [], [], []
    with fastmarl.MultiAgentEnvRunner(ippo.make_config(args)) as runner:
        learner = ippo.Learner(runner, args, iterations)
        for _ in range(WARM_UP + iterations):
            began = time.process_time()
            episodes = runner.sample()
            sampled = time.process_time()
            learner.learn(episodes)
            sampling.append(sampled - began)
            learning.append(time.process_time() - sampled)
            curve.append(statistics.fmean(episode.get_return() for episode in episodes))
    whole = [sum(parts) for parts in zip(sampling, learning, strict=True)]
    times = {"iteration": whole, "sampling": sampling, "learning": learning}
    medians = {f"{name}_ms": 1000 * statistics.median(seconds[WARM_UP:]) for name, seconds in times.items()}
    return {**medians, "compilation_s": 0.0, "first_return": curve[0], "last_return": curve[-1]}


def run(command: list[Any]) -> Turn:
    """Run a turn in a process and return the last line that it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed.splitlines()[-1])


def table(turns: dict[tuple[str, int], list[Turn]]) -> str:
    """Return a Markdown table of medians, one row for each learner and number of environments."""
    lines = ["| learner | envs | iteration | sampling | learning | compilation |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for (name, num_envs), of_learner in turns.items():
        medians = [f"{statistics.median(turn[part] for turn in of_learner):.1f} {unit}" for part, unit in PARTS.items()]
        lines.append(f"| {' | '.join([name, str(num_envs), *medians])} |")
    return "\n".join(lines)


def bench_ours() -> None:
    """Check that an iteration or two run."""
    assert time_iterations(num_envs=4, iterations=2, seed=0)["iteration_ms"] > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--iterations", type=int, default=20, help="timed in a turn, after the first 3")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ours", action="store_true", help="only our turn, in this process, as JSON")
    given = parser.parse_args()
    if given.ours:
        print(json.dumps(time_iterations(given.num_envs[0], given.iterations, seed=0)))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # inherited by all turns
    commands = {
        "fastmarl": [sys.executable, __file__, "--ours"],
        "JAX": [ROOT / "build" / "peers" / "jax" / "bin" / "python", ROOT / "benchmarks" / "learners" / "jax_ppo.py"],
    }
    turns: dict[tuple[str, int], list[Turn]] = {(name, n): [] for n in given.num_envs for name in commands}
    for _ in range(given.rounds):
        for (name, num_envs), of_learner in turns.items():
            options = ["--num-envs", str(num_envs), "--iterations", str(given.iterations)]
            of_learner.append(run([*commands[name], *options]))
            print(name, num_envs, of_learner[-1], flush=True)
    print(table(turns))


if __name__ == "__main__":
    main()
