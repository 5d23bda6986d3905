"""Compare the times in which learners reach a return: PPO on simple_spread, same networks and hyperparameters.

    python benchmarks/bench_time_to_return.py --seeds 3

`make build/peers/torchrl/.made build/peers/jax/.made` creates the environments of TorchRL and JAX. A learner is a
script in benchmarks/learners, in a process of its own with one thread; learners take turns, seed by seed. The clock
runs from the first sample to the iteration after which the mean return of 200 episodes has reached the target; JAX
compiles before that. Random play returns about -79. With other random numbers a learner needs another number of steps,
so the time to a return varies more between seeds than speed does. The hyperparameters were chosen with fastmarl's
learner alone, by seeds 0 and 1, which favours it.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
LEARNERS = {
    "fastmarl": ["fastmarl_ppo.py"],
    "fastmarl, environment compiled": ["fastmarl_ppo.py", "--env", "fastmarl.simple_spread"],
    "RLlib, both of ours fast": ["rllib_ppo.py", "--sampler", "fast"],
    "RLlib, both of ours exact": ["rllib_ppo.py", "--sampler", "exact"],
    "RLlib": ["rllib_ppo.py", "--sampler", "rllib"],
    "SuperSuit and a PyTorch loop": ["supersuit_ppo.py"],
    "TorchRL": ["torchrl_ppo.py"],
    "JAX": ["jax_ppo.py"],
}
PEERS = {"TorchRL": "torchrl", "JAX": "jax"}  # learners with their own Python environment -> its folder


def run(name, *options):
    """Run a learner and return its result, the last line in JSON."""
    script, *of_learner = LEARNERS[name]
    python = ROOT / "build" / "peers" / PEERS[name] / "bin" / "python" if name in PEERS else sys.executable
    command = [python, ROOT / "benchmarks" / "learners" / script, *of_learner, *options]
    # RLlib iterates over sets of ids, so it draws other numbers with other hashes.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads([line for line in printed.splitlines() if line.startswith("{")][-1])


@pytest.mark.parametrize("name", ["fastmarl", "fastmarl, environment compiled", "SuperSuit and a PyTorch loop"])
def bench_learner(name):
    """Check that an iteration or two run."""
    assert run(name, "--max-steps", "3200")["env_steps"] == 3200


def table(runs):
    """Return a Markdown table of medians over seeds, fastest first."""

    def median(name, what):
        return statistics.median(found[what] for found in runs[name])

    first = min(median(name, "cpu_seconds") for name in runs)
    lines = ["| learner | CPU time to the return | times the first | compilation before | env steps | of seeds |"]
    lines.append("|---|---|---|---|---|---|")
    for name in sorted(runs, key=lambda name: median(name, "cpu_seconds")):
        reached = sum(found["reached"] for found in runs[name])
        seconds = median(name, "cpu_seconds")
        lines.append(f"| {name} | {seconds:.0f} s | {seconds / first:.1f} | {median(name, 'compilation'):.0f} s | "
                     f"{median(name, 'env_steps'):,.0f} | {reached} of {len(runs[name])} |")  # fmt: skip
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--target", default="-45")
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build" / "time_to_return.json")
    arguments = parser.parse_args()
    runs = {name: [] for name in arguments.learners}
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for name, of_learner in runs.items():
            of_learner.append({"seed": seed, **run(name, "--seed", str(seed), "--target", arguments.target)})
            print(name, of_learner[-1], flush=True)
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(runs, indent=1))
    print(table(runs))


if __name__ == "__main__":
    main()
