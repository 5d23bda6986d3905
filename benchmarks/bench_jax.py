"""CPU time of a warm PPO iteration on simple_spread: `examples/ippo.py`, and the same in JAX, in turn on one core.

    python benchmarks/bench_jax.py

`make build/peers/jax/.made` makes JAX's environment. Each turn is a process of its own; figures are medians over turns
of each turn's median. Sampling and learning of JAX are compiled apart to be timed, and their sum may be more than the
iteration that is compiled as a whole.
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
    """Medians of our iterations in ms of CPU time."""
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
    """The last line that a turn's process printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed.splitlines()[-1])


def table(turns: dict[tuple[str, int], list[Turn]]) -> str:
    """Markdown: a row of medians for each learner and number of environments."""
    lines = ["| learner | envs | iteration | sampling | learning | compilation |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for (name, num_envs), of_learner in turns.items():
        medians = [f"{statistics.median(turn[part] for turn in of_learner):.1f} {unit}" for part, unit in PARTS.items()]
        lines.append(f"| {' | '.join([name, str(num_envs), *medians])} |")
    return "\n".join(lines)


def bench_ours() -> None:
    """That it runs, as far as an iteration or two."""
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
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # that of all turns, which inherit it
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
