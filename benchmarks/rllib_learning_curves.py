"""Learning curves of PPO on MultiAgentCartPole: RLlib's runner and learner, ours in exact and in fast modes.

    python benchmarks/rllib_learning_curves.py
    python benchmarks/rllib_learning_curves.py --kinds RLlib --seeds 5
    python benchmarks/rllib_learning_curves.py --kinds  # plots and compares the curves in the file

Runs in benchmarks/results/rllib_learning_curves.csv are not repeated. RLlib and exact must be bit-identical where both
were run. The fast runs draw other random numbers; permutation tests check whether their distribution differs. The plot,
docs/images/rllib_learning_curves.png, has medians and quartiles over seeds.
"""

import argparse
import csv
import pathlib

import numpy as np
from rllib_learner import KINDS as CLASSES
from rllib_learner import make_algorithm, seed, start_ray

ROOT = pathlib.Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "rllib_learning_curves.csv"
PICTURE = ROOT / "docs" / "images" / "rllib_learning_curves.png"
KINDS = {"RLlib": "RLlib", "exact": "its learner, too", "fast": "both fast"}
COLUMNS = ("kind", "seed", "iteration", "env_steps", "episode_return_mean")
EPOCHS = 6
N_PERMUTATIONS = 20_000


def run(kind, number, n_iterations):
    """Train with one seed and return the rows for the file."""
    algorithm = make_algorithm(*CLASSES[KINDS[kind]], epochs=EPOCHS, number=number)
    seed(number)
    rows = []
    for i in range(n_iterations):
        found = algorithm.train()["env_runners"]
        rows.append((kind, number, i + 1, found["num_env_steps_sampled_lifetime"], found["episode_return_mean"]))
    algorithm.stop()
    return rows


def curves():
    """Return {seed: returns [n_iterations]} by kind."""
    found = {kind: {} for kind in KINDS}
    if FILE.exists():
        with FILE.open() as lines:
            for row in csv.DictReader(lines):
                found[row["kind"]].setdefault(int(row["seed"]), []).append(float(row["episode_return_mean"]))
    return found


def append(rows):
    is_new = not FILE.exists()
    with FILE.open("a", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows] if is_new else rows)


def p_value(ours, theirs):
    """Return the p-value of the difference of two means, by permutations."""
    generator = np.random.default_rng(0)
    both, n = np.concatenate([ours, theirs]), len(ours)

    def distance(values):
        return abs(values[:n].mean() - values[n:].mean())

    largest = distance(both)
    n_as_large = sum(distance(generator.permutation(both)) >= largest * (1 - 1e-12) for _ in range(N_PERMUTATIONS))
    return (n_as_large + 1) / (N_PERMUTATIONS + 1)


def expected(found):
    """Return RLlib's runs, and exact ones for other seeds, after a check that both are equal where they overlap."""
    both = sorted(found["exact"].keys() & found["RLlib"].keys())
    for number in both:
        assert found["exact"][number] == found["RLlib"][number], f"seed {number}: exact differs from RLlib"
    print("exact is bit-identical to RLlib, seeds", both)
    return {**found["exact"], **found["RLlib"]}


def compare(theirs, ours):
    theirs, ours = np.array(list(theirs.values())), np.array(list(ours.values()))
    for name, of in (("final return", lambda runs: runs[:, -1]), ("mean over iterations", lambda runs: runs.mean(1))):
        print(f"{name}: RLlib {of(theirs).mean():.1f} (sd {of(theirs).std(ddof=1):.1f}, n {len(theirs)}), "
              f"fast {of(ours).mean():.1f} (sd {of(ours).std(ddof=1):.1f}, n {len(ours)}), "
              f"p = {p_value(of(ours), of(theirs)):.2f}")  # fmt: skip


def draw(theirs, ours):
    from fastmarl.report.plots import OTHERS, OURS, picture

    with picture(PICTURE, 6.4, 3.6) as figure:
        axes = figure.subplots()
        for by_seed, color, label in ((theirs, OTHERS, "RLlib and exact: equal"), (ours, OURS, "fast")):
            runs = np.array(list(by_seed.values()))
            steps = 4_000 * np.arange(1, runs.shape[1] + 1)
            low, median, high = np.quantile(runs, (0.25, 0.5, 0.75), axis=0)
            axes.plot(steps, median, color=color, linewidth=1.8, label=f"{label}, {len(runs)} seeds")
            axes.fill_between(steps, low, high, color=color, alpha=0.25, linewidth=0)
        axes.set_xlabel("environment steps")
        axes.set_ylabel("mean episode return: median, quartiles", fontsize=9)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(frameon=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=15)
    arguments = parser.parse_args()
    if arguments.kinds:
        start_ray()
    for number in range(1, arguments.seeds + 1):
        for kind in arguments.kinds:
            if number not in curves()[kind]:
                append(run(kind, number, arguments.iterations))
    found = curves()
    if all(found.values()):
        theirs = expected(found)
        compare(theirs, found["fast"])
        draw(theirs, found["fast"])


if __name__ == "__main__":
    main()
