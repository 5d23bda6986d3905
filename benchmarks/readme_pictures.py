"""Draws the README's pictures: samplers' speeds, times to a return, and the learning curve of its training loop.

    python benchmarks/readme_pictures.py speed
    python benchmarks/readme_pictures.py learning_curve

Speeds are those in results/peers.json, times those in results/time_to_return.json; the loop is run with three
seeds.
"""

import argparse
import json
import pathlib
import re
import statistics

import numpy as np
import torch

from fastmarl.report.plots import LIMIT, OTHERS, OURS, bars, picture

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PEERS, TIMES = RESULTS / "peers.json", RESULTS / "time_to_return.json"
IMAGES = ROOT / "docs" / "images"
SAMPLERS = {  # in peers.json -> in the picture
    "fastmarl": "fastmarl",
    "fastmarl-rllib": "RLlib with fastmarl",
    "pufferlib": "PufferLib 3",
    "supersuit": "SuperSuit",
    "sample-factory": "Sample Factory",
    "rllib": "RLlib",
    "torchrl": "TorchRL",
}
LEARNERS = {  # in time_to_return.json -> in the picture
    "fastmarl, environment compiled": "fastmarl, compiled env",
    "JAX": "JAX, env in JAX *",
    "fastmarl": "fastmarl",
    "RLlib, both of ours exact": "RLlib with fastmarl",
    "SuperSuit and a PyTorch loop": "SuperSuit, CleanRL's PPO",
    "RLlib": "RLlib",
    "TorchRL": "TorchRL",
}
SEEDS = (0, 1, 2)
STEPS_PER_ITERATION = 1_600
RANDOM, TRAINED = -79, -23  # returns of random play, and of examples/ippo.py after 12 million env steps


def draw_speed() -> None:
    """Draw agent steps per second, and below them CPU seconds of training to the same return."""
    speeds = {name: speed_of(name) for name in SAMPLERS}
    runs = json.loads(TIMES.read_text())
    seconds = {name: statistics.median(run["cpu_seconds"] for run in runs[name]) for name in LEARNERS}
    with picture(IMAGES / "speed.png", 8, 5.2) as figure:
        above, below = figure.subplots(2)
        draw_bars(above, SAMPLERS, speeds, "{:,.0f}")
        above.set_title("simple_spread_v3, 8 copies in one process: agent steps per second", loc="left", fontsize=10)
        draw_bars(below, LEARNERS, seconds, "{:.0f} s")
        below.set_title(
            "PPO on simple_spread_v3 to a return of -45: CPU time (* and 7 s to compile)",
            loc="left",
            fontsize=10,
        )


def speed_of(sampler: str) -> float:
    """Return the median agent steps per second with 8 copies of simple_spread_v3 in one process."""
    found = [
        result["agent_steps_per_second"]
        for setting in json.loads(PEERS.read_text())["settings"]
        if (setting["env"], setting["num_envs"], setting["num_workers"]) == ("spread", 8, 0)
        for result in setting["results"]
        if result["peer"] == sampler
    ]
    return statistics.median(found[-1])


def draw_bars(axes, labels, values, form) -> None:
    colors = [OURS if "fastmarl" in labels[name] else OTHERS for name in labels]
    bars(
        axes,
        [*labels.values()],
        [values[name] for name in labels],
        [form.format(values[name]) for name in labels],
        colors,
    )
    axes.margins(x=0.12)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def draw_learning_curve() -> None:
    """Run the README's loop, and draw its returns between those of random play and of a trained policy."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (code,) = (block for block in blocks if "learner.update(" in block)
    assert code.count("seed=0") == 1
    torch.set_num_threads(1)
    curves = np.array([returns_of(code, seed) for seed in SEEDS])
    steps = STEPS_PER_ITERATION * np.arange(1, curves.shape[1] + 1)
    with picture(IMAGES / "learning_curve.png", 6.4, 3.2) as figure:
        axes = figure.subplots()
        for seed, curve in zip(SEEDS, curves, strict=True):
            axes.plot(steps, curve, linewidth=1.2, label=f"seed {seed}")
        for value, text, below in ((RANDOM, "random play", True), (TRAINED, "after 12 million env steps", False)):
            axes.axhline(value, color=LIMIT, linewidth=1, linestyle="--")
            axes.annotate(f"{text}: {value}", (steps[-1], value), (0, -4 if below else 4), textcoords="offset points",
                          ha="right", va="top" if below else "bottom", fontsize=9)  # fmt: skip
        axes.set_ylim(-92, -15)
        axes.set_xlabel("environment steps")
        axes.set_ylabel("mean episode return")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(frameon=False, loc="center right")
    print({seed: (round(curve[0], 1), round(curve[-20:].mean(), 1)) for seed, curve in zip(SEEDS, curves, strict=True)})


def returns_of(code: str, seed: int) -> list[float]:
    """Return the mean episode return of each iteration of the loop."""
    torch.manual_seed(seed)
    returns: list[float] = []
    namespace = {"__name__": "README", "print": lambda iteration, mean: returns.append(mean)}
    exec(compile(code.replace("seed=0", f"seed={seed}"), "README.md", "exec"), namespace)
    return returns


if __name__ == "__main__":
    pictures = {"speed": draw_speed, "learning_curve": draw_learning_curve}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", choices=pictures)
    pictures[parser.parse_args().picture]()
