"""Comparison of training runs by what their checkpoints hold."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from fastmarl.checkpoint import load_state
from fastmarl.training.run_folder import checkpoint_in


def arrays_in(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {key: value for name in tree for key, value in arrays_in(tree[name], f"{path}/{name}").items()}
    if isinstance(tree, (list, tuple)):
        return arrays_in(dict(enumerate(tree)), path)
    return {path: tree}


def state_of(folder: Path) -> dict[str, Any]:
    """Return all that a run's last checkpoint holds of training, except clock, random ids and digests."""
    checkpoint = checkpoint_in(folder)
    state = {"modules": load_state(checkpoint)["rl_module"], **load_state(checkpoint / "learner")}
    del state["cpu_seconds"], state["runner"]
    return {name: value for name, value in arrays_in(state).items() if "/episode_ids/" not in name}


def assert_equal_runs(one: Path, other: Path) -> None:
    found, wanted = state_of(one), state_of(other)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    curves = []
    for folder in (one, other):
        with (folder / "curve.csv").open() as file:
            curves.append([row["step"] for row in csv.DictReader(file)])
    assert curves[0] == curves[1]
