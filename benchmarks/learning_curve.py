"""Draw docs/images/learning_curve.png: the README's training loop with three seeds.

python benchmarks/learning_curve.py
"""

import pathlib
import re

import numpy as np
import torch

from fastmarl.report.plots import picture

ROOT = pathlib.Path(__file__).parents[1]
SEEDS = (0, 1, 2)
STEPS_PER_ITERATION = 3_200


def returns_of(code: str, seed: int) -> list[float]:
    """Return the mean episode return of each iteration of the loop."""
    torch.manual_seed(seed)
    returns: list[float] = []
    namespace = {"__name__": "README", "print": lambda iteration, mean: returns.append(mean)}
    exec(compile(code.replace("seed=0", f"seed={seed}"), "README.md", "exec"), namespace)
    return returns


def main() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (code,) = (block for block in blocks if "learner.update(" in block)
    assert code.count("seed=0") == 1
    curves = np.array([returns_of(code, seed) for seed in SEEDS])
    steps = STEPS_PER_ITERATION * np.arange(1, curves.shape[1] + 1)
    with picture(ROOT / "docs" / "images" / "learning_curve.png", 6.4, 3.2) as figure:
        axes = figure.subplots()
        for seed, curve in zip(SEEDS, curves, strict=True):
            axes.plot(steps, curve, linewidth=1.5, label=f"seed {seed}")
        axes.set_xlabel("environment steps")
        axes.set_ylabel("mean episode return, last 100 episodes", fontsize=9)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(frameon=False)
    print({seed: (round(curve[0], 1), round(curve[-1], 1)) for seed, curve in zip(SEEDS, curves, strict=True)})


if __name__ == "__main__":
    main()
